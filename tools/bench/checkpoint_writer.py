"""Makes a checkpoint like those of dense language models: BF16, matrices that 8 ranks can cut.

The first tensor of a rank is the embedding of 16 MiB: small, so that the time until it is usable
says how soon a load begins and not how fast storage is.
"""

import json
import os
import shutil
import struct

HIDDEN = 2048
INTERMEDIATE = 5632
KEYS_AND_VALUES = 512
VOCABULARY = 4096
ELEMENT_BYTES = 2
SHARDS = 4
# Written over and over; longer than any page or block, and no multiple of one, so that no two
# blocks of a file are alike.
PATTERN_BYTES = (16 << 20) + 8
# Numbers of the right form, not NaN: bit 6 of the second byte of a BF16 number is cleared.
_CLEAR_EXPONENT = bytes(value & 0xBF for value in range(256))


def _layer(index):
    prefix = f"model.layers.{index}."
    return [
        (prefix + "input_layernorm.weight", [HIDDEN]),
        (prefix + "mlp.down_proj.weight", [HIDDEN, INTERMEDIATE]),
        (prefix + "mlp.gate_proj.weight", [INTERMEDIATE, HIDDEN]),
        (prefix + "mlp.up_proj.weight", [INTERMEDIATE, HIDDEN]),
        (prefix + "post_attention_layernorm.weight", [HIDDEN]),
        (prefix + "self_attn.k_proj.weight", [KEYS_AND_VALUES, HIDDEN]),
        (prefix + "self_attn.o_proj.weight", [HIDDEN, HIDDEN]),
        (prefix + "self_attn.q_proj.weight", [HIDDEN, HIDDEN]),
        (prefix + "self_attn.v_proj.weight", [KEYS_AND_VALUES, HIDDEN]),
    ]


def _bytes_of(shape):
    count = ELEMENT_BYTES
    for size in shape:
        count *= size
    return count


def tensors_for(wanted_bytes):
    """[(name, shape)] of about so many bytes: an embedding, whole layers, a norm and a head."""
    ends = [("model.embed_tokens.weight", [VOCABULARY, HIDDEN])]
    tail = [("model.norm.weight", [HIDDEN]), ("lm_head.weight", [VOCABULARY, HIDDEN])]
    layer_bytes = sum(_bytes_of(shape) for _, shape in _layer(0))
    rest = wanted_bytes - sum(_bytes_of(shape) for _, shape in ends + tail)
    layers = max(0, round(rest / layer_bytes))
    return ends + [tensor for index in range(layers) for tensor in _layer(index)] + tail


def deal(tensors, shards):
    """Consecutive parts of about equal bytes, none empty."""
    total = sum(_bytes_of(shape) for _, shape in tensors)
    parts = [[] for _ in range(shards)]
    done = 0
    for index, tensor in enumerate(tensors):
        left_after = len(tensors) - index - 1
        part = min(shards - 1, done * shards // total)
        # So that every later part gets one.
        while part > 0 and not parts[part - 1]:
            part -= 1
        if part < shards - 1 and left_after < shards - 1 - part and parts[part]:
            part += 1
        parts[part].append(tensor)
        done += _bytes_of(tensor[1])
    return [part for part in parts if part]


def header_of(tensors):
    """The file's first bytes, padded so that every tensor begins at a multiple of 8."""
    offset = 0
    entries = {}
    for name, shape in tensors:
        entries[name] = {"dtype": "BF16", "shape": shape,
                         "data_offsets": [offset, offset + _bytes_of(shape)]}
        offset += _bytes_of(shape)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_checkpoint(directory, wanted_bytes, shards=SHARDS):
    """Written under another name and renamed at the end; what is there already is kept."""
    if os.path.exists(os.path.join(directory, "model.safetensors.index.json")):
        return
    making = directory.rstrip("/") + ".partial"
    shutil.rmtree(making, ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(making)
    pattern = os.urandom(PATTERN_BYTES // 2 * 2).translate(_CLEAR_EXPONENT)
    weight_map = {}
    parts = deal(tensors_for(wanted_bytes), shards)
    for index, tensors in enumerate(parts, 1):
        name = f"model-{index:05}-of-{len(parts):05}.safetensors"
        left = sum(_bytes_of(shape) for _, shape in tensors)
        with open(os.path.join(making, name), "wb") as file:
            file.write(header_of(tensors))
            while left > 0:
                left -= file.write(pattern[:left])
            file.flush()
            os.fsync(file.fileno())
        weight_map.update({tensor: name for tensor, _ in tensors})
    with open(os.path.join(making, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)
    os.rename(making, directory)


def shard_paths(directory):
    return sorted(os.path.join(directory, name) for name in os.listdir(directory)
                  if name.endswith(".safetensors"))
