"""A checkpoint larger than memory."""

import hashlib
import json
import struct

from forestage_testing import checkpoints

STAGED = "rank_striped_read_ahead"
SHARDS = 163
SHARD_BYTES = 9_200_000_000
WANTED_BYTES = 1 << 20


def write_sparse_shard(path, tensors):
    """{name: bytes} of data that nobody ever wrote."""
    header = {}
    offset = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def test_a_part_of_a_checkpoint_far_larger_than_memory_is_loaded(
    start_daemon, data_dir, start_rank
):
    for number in range(1, SHARDS + 1):
        write_sparse_shard(
            data_dir / f"model-{number:05}-of-{SHARDS:05}.safetensors",
            {f"{number}.small": WANTED_BYTES, f"{number}.large": SHARD_BYTES - WANTED_BYTES},
        )
    assert checkpoints.total_bytes(data_dir) > 1_499_000_000_000
    wanted = ["7.small", "100.small", f"{SHARDS}.small"]
    flags = [word for name in wanted for word in ["--demand", name]]
    rank = start_rank(data_dir, socket=start_daemon().socket, flags=flags)
    decision = rank.expect("opened")["decision"]
    # The demand would fit; the checkpoint does not, and the daemon may say so.
    assert decision["effective"] == STAGED or "memory" in decision["reason"], decision
    zeros = hashlib.sha256(bytes(WANTED_BYTES)).hexdigest()
    assert rank.finish()["digests"] == dict.fromkeys(wanted, zeros)
