"""Checkpoints larger than memory, and of very many files."""

import hashlib
import json
import os
import pathlib
import shutil
import struct
import tempfile

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import read_digests
from forestage_testing.processes import descriptor_count, wait_until

STAGED = "rank_striped_read_ahead"
MANY = 10_000
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
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    zeros = hashlib.sha256(bytes(WANTED_BYTES)).hexdigest()
    assert rank.finish()["digests"] == dict.fromkeys(wanted, zeros)


@pytest.fixture
def memory_dir():
    """On a tmpfs: a disk takes a minute to make and remove ten thousand files."""
    path = tempfile.mkdtemp(dir="/dev/shm")
    yield pathlib.Path(path)
    shutil.rmtree(path)


def test_ten_thousand_shards_are_loaded(daemon, cli, memory_dir, digests_path):
    content = os.urandom(64)
    for number in range(1, MANY + 1):
        path = memory_dir / f"model-{number:05}-of-{MANY:05}.safetensors"
        checkpoints.save_raw(path, [(f"t{number}", "U8", [64], content)])
    result = cli.load(memory_dir, ranks=1, digests=digests_path)
    assert result["ranks"][0]["effective"] == STAGED
    digests = read_digests(digests_path)
    assert len(digests) == MANY
    assert set(digests.values()) == {hashlib.sha256(content).hexdigest()}
    daemon.wait_for_no_sessions()
    wait_until(lambda: descriptor_count(daemon.pid) < 100, "the descriptors to be given back")
