"""Checkpoints with very many tensors or shards: valid headers, data that are holes in the file.

Uses the standard library only, since benchmarks use it too.
"""

import dataclasses
import json
import pathlib
import struct

INDEX_NAME = "model.safetensors.index.json"
DTYPE_BYTES = {"F8_E4M3": 1, "BF16": 2, "F32": 4}
# Scales stand one for a block of so many rows and columns, as in published fp8 models.
SCALE_BLOCK = 128


@dataclasses.dataclass(frozen=True)
class MixtureOfExperts:
    """Names and shapes as of a large model of this kind; about 700 GB unless said otherwise."""

    layers: int = 96
    experts: int = 256
    hidden: int = 4608
    expert_hidden: int = 2048
    vocabulary: int = 129280

    def tensors(self):
        """(name, dtype, shape) in the order in which they are written."""
        yield "model.embed_tokens.weight", "BF16", [self.vocabulary, self.hidden]
        for layer in range(self.layers):
            yield from self._layer(f"model.layers.{layer}")
        yield "model.norm.weight", "BF16", [self.hidden]
        yield "lm_head.weight", "BF16", [self.vocabulary, self.hidden]

    def _layer(self, layer):
        for norm in ["input_layernorm", "post_attention_layernorm"]:
            yield f"{layer}.{norm}.weight", "BF16", [self.hidden]
        for norm in ["q_a_layernorm", "kv_a_layernorm"]:
            yield f"{layer}.self_attn.{norm}.weight", "BF16", [512]
        for name in ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]:
            yield from self._quantised(f"{layer}.self_attn.{name}", 512, self.hidden)
        yield f"{layer}.mlp.gate.weight", "BF16", [self.experts, self.hidden]
        yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", [self.experts]
        experts = [f"experts.{expert}" for expert in range(self.experts)]
        for expert in [*experts, "shared_experts"]:
            for name, rows, columns in [
                ("gate_proj", self.expert_hidden, self.hidden),
                ("up_proj", self.expert_hidden, self.hidden),
                ("down_proj", self.hidden, self.expert_hidden),
            ]:
                yield from self._quantised(f"{layer}.mlp.{expert}.{name}", rows, columns)

    @staticmethod
    def _quantised(name, rows, columns):
        blocks = [-(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK)]
        yield f"{name}.weight", "F8_E4M3", [rows, columns]
        yield f"{name}.weight_scale_inv", "F32", blocks


def small_tensors(count):
    """(name, dtype, shape) of tensors of a few bytes."""
    for index in range(count):
        yield f"model.layers.{index}.norm.weight", "BF16", [8]


def bytes_of(dtype, shape):
    size = DTYPE_BYTES[dtype]
    for dimension in shape:
        size *= dimension
    return size


def write_sparse(directory, tensors, *, shard_count, tensor_count=None, index=True):
    """Writes `tensors` (name, dtype, shape), the first `tensor_count`, evenly over the shards.

    Where there are fewer than `tensor_count`, small ones are added. Returns the names.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = list(tensors)
    if tensor_count is not None:
        del tensors[tensor_count:]
        for extra in range(tensor_count - len(tensors)):
            tensors.append((f"model.extra.{extra}.bias", "BF16", [64]))
    weight_map = {}
    total = 0
    for shard in range(shard_count):
        file_name = f"model-{shard + 1:05}-of-{shard_count:05}.safetensors"
        begin = len(tensors) * shard // shard_count
        end = len(tensors) * (shard + 1) // shard_count
        header = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, dtype, shape in tensors[begin:end]:
            size = bytes_of(dtype, shape)
            header[name] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [offset, offset + size],
            }
            weight_map[name] = file_name
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(directory / file_name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
        total += offset
    if index:
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX_NAME).write_text(json.dumps(document, indent=2))
    return [name for name, _, _ in tensors]
