"""Very large, sparse and empty files, and names that are no text."""

import hashlib
import os

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.large_catalog import write_sparse

MIB = 1 << 20
GIB = 1 << 30
STAGED = "rank_striped_read_ahead"
WAYS = {"daemon": [], "native": ["--policy", "native"]}
SPARSE_SHARDS = 24
SPARSE_TENSORS_EACH = 16
# Of each tensor; in all: 1.5 TB.
SPARSE_BYTES = 4 * GIB - 4096


@pytest.mark.parametrize("way", WAYS)
def test_holes_of_sparse_files_are_zeros(way, daemon, data_dir, start_rank):
    path = data_dir / "model.safetensors"
    tensors = {f"t{i}": numpy.zeros((2 * MIB,), "uint8") for i in range(4)}
    checkpoints.save(path, tensors)
    whole = path.stat().st_size
    # Data in the middle, holes on both sides.
    begin = checkpoints.data_ranges(path)["t2"][0]
    header = path.read_bytes()[: min(b for b, _ in checkpoints.data_ranges(path).values())]
    with open(path, "wb") as file:
        file.write(header)
        file.seek(begin + 5)
        file.write(b"\x01" * 70_000)
        file.truncate(whole)
    assert path.stat().st_blocks * 512 < MIB
    checkpoints.make_cold(data_dir)
    rank = start_rank(data_dir, socket=daemon.socket, flags=WAYS[way])
    assert rank.digests(rank.outcome()) == checkpoints.expected_digests(data_dir, 1, "all")


@pytest.fixture(scope="module")
def terabytes(build_dir, tmp_path_factory):
    """(directory, {tensor: (shard, begin, end)}) of 1.5 TB that take a few KiB on the disk."""
    directory = tmp_path_factory.mktemp("terabytes")
    names = [f"t{i:03}" for i in range(SPARSE_SHARDS * SPARSE_TENSORS_EACH)]
    tensors = [(name, "F8_E4M3", [SPARSE_BYTES]) for name in names]
    # Small ones at the beginning and the end of all, which can be loaded.
    tensors = [("first", "BF16", [8]), *tensors, ("last", "BF16", [8])]
    places = write_sparse(directory, tensors, shard_count=SPARSE_SHARDS)
    return directory, {name: (shard, begin, end) for name, shard, begin, end in places}


def write_tensor(directory, place, content):
    shard, begin, end = place
    assert end - begin == len(content)
    with open(directory / shard, "r+b") as file:
        file.seek(begin)
        file.write(content)


@pytest.mark.parametrize("way", WAYS)
def test_1_5_terabytes_open_and_their_first_and_last_tensors_are_right(
    way, daemon, terabytes, start_rank
):
    directory, places = terabytes
    assert checkpoints.total_bytes(directory) > 1.5e12
    expected = {}
    for name in ["first", "last"]:
        content = os.urandom(16)
        write_tensor(directory, places[name], content)
        expected[name] = hashlib.sha256(content).hexdigest()
    flags = ["--demand", "first", "--demand", "last", *WAYS[way]]
    event = start_rank(directory, socket=daemon.socket, flags=flags).outcome()
    assert event["event"] == "done", event
    assert event["digests"] == expected
    assert daemon.health() == "SERVING"


def test_1_5_terabytes_are_said_not_to_fit_with_the_numbers(daemon, cli, terabytes):
    directory, _ = terabytes
    said = cli.run("stage", directory, "--once", code=1).stderr
    assert "TiB" in said and "available" in said
    assert daemon.health() == "SERVING"


def test_1_5_terabytes_are_listed_by_their_headers_alone(cli_without_daemon, terabytes):
    directory, _ = terabytes
    listed = cli_without_daemon.json("ls", directory)
    assert listed["total_bytes"] == checkpoints.total_bytes(directory)
    assert len(listed["tensors"]) == SPARSE_SHARDS * SPARSE_TENSORS_EACH + 2


@pytest.mark.parametrize("way", WAYS)
def test_empty_files_among_shards_are_all_named(way, daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=5, mib=5)
    paths = checkpoints.shard_paths(data_dir)
    empty = [paths[0], paths[3], paths[4]]
    for path in empty:
        os.truncate(path, 0)
    event = start_rank(data_dir, socket=daemon.socket, flags=WAYS[way]).outcome()
    assert event["event"] == "error"
    assert event["message"].count("an empty file") == len(empty)
    for path in paths:
        assert (path.name in event["message"]) == (path in empty)


NAMES = [b"\xff\xfe.safetensors", b"mod\xc3.safetensors", b"a\nb.safetensors", "模型.safetensors".encode()]


@pytest.fixture
def oddly_named(data_dir):
    """A directory whose own name is no text either, and what it holds."""
    random = numpy.random.default_rng(8)
    directory = os.path.join(os.fsencode(data_dir), b"dir\xe9\xff")
    os.mkdir(directory)
    digests = {}
    for i, name in enumerate(NAMES):
        array = checkpoints.random_array(random, "uint8", (300_001,))
        checkpoints.save(data_dir / "plain", {f"t{i}": array})
        os.rename(data_dir / "plain", os.path.join(directory, name))
        digests[f"t{i}"] = hashlib.sha256(array.tobytes()).hexdigest()
    return directory, digests


@pytest.mark.parametrize("way", WAYS)
def test_names_that_are_no_text_are_loaded(way, daemon, oddly_named, start_rank):
    directory, digests = oddly_named
    rank = start_rank(os.fsdecode(directory), socket=daemon.socket, flags=WAYS[way])
    event = rank.outcome()
    assert event["event"] == "done", event
    assert event["decision"]["effective"] == (STAGED if way == "daemon" else "native"), event
    assert event["digests"] == digests


def test_names_that_are_no_text_are_staged_listed_and_shown(cli, daemon, oddly_named, start_rank):
    directory, digests = oddly_named
    assert len(cli.json("ls", os.fsdecode(directory))["shards"]) == len(NAMES)
    cli.run("stage", os.fsdecode(directory), "--once")
    rank = start_rank(os.fsdecode(directory), socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    (checkpoint,) = daemon.status()["checkpoints"]
    assert checkpoint["shard_count"] == len(NAMES)
    assert "dir" in cli.run("status").stdout
    rank.resume()
    rank.finish()


def test_names_that_are_no_text_are_printed_with_their_bytes_escaped(cli, daemon, oddly_named):
    directory, _ = oddly_named
    evil = os.path.join(directory, b"\x1b[2J\xff.safetensors.partial")
    open(evil, "wb").close()
    text = cli.run("ls", os.fsdecode(directory)).stdout
    for shown in ["%FF%FE.safetensors", "mod%C3.safetensors", "a%0Ab.safetensors", "模型.safetensors"]:
        assert shown in text
    assert "%1B[2J%FF.safetensors.partial" in text and "\x1b" not in text
    text = cli.run("stage", os.fsdecode(directory), "--once").stdout
    assert "dir\\xe9\\xff: " in text
    os.truncate(os.path.join(directory, NAMES[2]), 4)
    for command in [["ls"], ["doctor"], ["load", "--ranks", "2"], ["stage", "--once"]]:
        finished = cli.run(*command, os.fsdecode(directory), code=1)
        text = finished.stdout + finished.stderr
        assert "a\\nb.safetensors" in text and "a\nb.safetensors" not in text
        assert "\udce9" not in text and "\ufffd" not in text


def test_errors_about_names_that_are_no_text_reach_rank_status_and_log(
    cli, daemon, oddly_named, start_rank, mount_slowfs
):
    directory, _ = oddly_named
    rank = start_rank(os.fsdecode(directory), socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    # Behind what is staged, a change that status is to tell.
    path = os.path.join(directory, NAMES[0])
    os.truncate(path, os.stat(path).st_size - 1)
    (checkpoint,) = daemon.status()["checkpoints"]
    assert "changed since it was opened" in checkpoint["read_errors"][0]
    assert "changed since it was opened" in cli.run("status").stdout
    rank.resume()
    rank.finish()
    for flags in WAYS.values():
        event = start_rank(os.fsdecode(directory), socket=daemon.socket, flags=flags).outcome()
        assert event["event"] == "error"
        assert "a cut download" in event["message"]
    assert daemon.health() == "SERVING"
