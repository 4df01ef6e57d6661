"""Tensors and headers that other readers trip over, through every path a rank has."""

import hashlib
import json
import struct

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.checkpoints import save_raw

STAGED = "rank_striped_read_ahead"
# Daemon or not, mapped or copied.
PATHS = {
    "staged-view": [],
    "staged-copy": ["--copy"],
    "native-view": ["--policy", "native"],
    "native-copy": ["--policy", "native", "--copy"],
}
HEADER_BYTES_MAX = 100_000_000


@pytest.fixture
def load_all_ways(daemon, start_rank):
    """load_all_ways(directory): asserts that every path gives the reference's bytes."""

    def load(directory):
        expected = checkpoints.expected_digests(directory, 1, "all")
        for path, flags in PATHS.items():
            rank = start_rank(directory, socket=daemon.socket, group=path, flags=flags)
            event = rank.outcome()
            assert event["event"] == "done", event
            effective = event["decision"]["effective"]
            assert effective == (STAGED if path.startswith("staged") else "native"), event
            assert rank.digests(event) == expected, path

    return load


@pytest.mark.parametrize("remainder", range(8))
def test_tensors_at_any_distance_from_alignment_are_right_through_every_path(
    remainder, data_dir, load_all_ways
):
    random = numpy.random.default_rng(remainder)
    tensors = [
        ("byte", "U8", (3,), random.bytes(3)),
        ("wide", "F64", (1001, 3), random.bytes(1001 * 3 * 8)),
        ("half", "BF16", (513, 1025), random.bytes(513 * 1025 * 2)),
        ("float", "F32", (7,), random.bytes(28)),
    ]
    path = data_dir / "model.safetensors"
    save_raw(path, tensors)
    (header_bytes,) = struct.unpack("<Q", path.read_bytes()[:8])
    padding = (remainder - header_bytes) % 8
    save_raw(path, tensors, header_padding=padding)
    (header_bytes,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert header_bytes % 8 == remainder
    load_all_ways(data_dir)


EMPTY = [("empty{}", "F32", (0,), b""), ("flat{}", "F16", (3, 0, 2), b"")]


def with_empty(places):
    random = numpy.random.default_rng(1)
    tensors = [("a", "I16", (50,), random.bytes(100)), ("b", "U8", (70000,), random.bytes(70000))]
    for place in sorted(places, reverse=True):
        tensors[place:place] = [(name.format(place), *rest) for name, *rest in EMPTY]
    return tensors


@pytest.mark.parametrize("places", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_tensors_without_elements_are_served_wherever_they_lie(places, data_dir, load_all_ways):
    save_raw(data_dir / "model.safetensors", with_empty(places))
    load_all_ways(data_dir)


def test_a_file_of_nothing_but_empty_tensors_is_served(data_dir, load_all_ways):
    save_raw(data_dir / "model.safetensors", [("e", "F32", (0,), b""), ("f", "U8", (0, 9), b"")])
    load_all_ways(data_dir)


DTYPE_BITS = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"], 8),
    **dict.fromkeys(["F8_E4M3FNUZ", "F8_E5M2FNUZ"], 8),
    **dict.fromkeys(["I16", "U16", "F16", "BF16"], 16),
    **dict.fromkeys(["I32", "U32", "F32"], 32),
    **dict.fromkeys(["I64", "U64", "F64", "C64"], 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


def test_every_dtype_is_served_in_one_file_and_scalars_of_all_that_have_whole_bytes(
    data_dir, load_all_ways
):
    assert len(DTYPE_BITS) == 22
    tensors = []
    for dtype, bits in DTYPE_BITS.items():
        # Valid booleans too.
        tensors.append((f"{dtype}.matrix", dtype, (6, 4), bytes([1]) * (6 * 4 * bits // 8)))
        if bits % 8 == 0:
            tensors.append((f"{dtype}.scalar", dtype, (), bytes([1]) * (bits // 8)))
    save_raw(data_dir / "model.safetensors", tensors)
    load_all_ways(data_dir)


def test_a_dtype_that_nobody_knows_is_an_error_with_its_name(daemon, data_dir, start_rank):
    entry = '{"w":{"dtype":"F3_E1M1","shape":[8],"data_offsets":[0,3]}}'
    checkpoints.save_header(data_dir / "model.safetensors", entry, 3)
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    assert event["event"] == "error"
    assert "F3_E1M1" in event["message"] and "'w'" in event["message"]


@pytest.mark.parametrize("metadata", ["absent", "null", "{}", '{"total":"7"}', '{"format":"pt"}'])
def test_metadata_of_any_form_and_without_a_format_is_accepted(metadata, data_dir, load_all_ways):
    entry = '"t":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}'
    begin = "" if metadata == "absent" else f'"__metadata__":{metadata},'
    checkpoints.save_header(data_dir / "model.safetensors", "{%s%s}" % (begin, entry), 5)
    load_all_ways(data_dir)


def test_metadata_that_is_no_text_is_an_error_that_names_it(daemon, data_dir, start_rank):
    entry = '"t":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}'
    header = '{"__metadata__":{"step":7},%s}' % entry
    checkpoints.save_header(data_dir / "model.safetensors", header, 5)
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    assert event["event"] == "error"
    assert "__metadata__" in event["message"] and "model.safetensors" in event["message"]


def test_a_file_with_metadata_and_no_tensor_is_staged_and_costs_nothing(cli, data_dir):
    checkpoints.save_header(data_dir / "model.safetensors", '{"__metadata__":{"format":"pt"}}')
    staged = cli.json("stage", data_dir, "--once")
    assert staged["bytes_read"] == 0
    assert cli.json("ls", data_dir)["tensors"] == []


def test_stray_text_behind_a_header_without_tensors_is_a_syntax_error(daemon, data_dir, start_rank):
    checkpoints.save_header(data_dir / "model.safetensors", '{}{"__metadata__":{}}')
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    assert event["event"] == "error"
    assert "InvalidHeaderDeserialization" in event["message"]


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_headers_up_to_the_limit_are_taken_and_beyond_it_refused(
    beyond, daemon, data_dir, start_rank
):
    path = data_dir / "model.safetensors"
    content = b"weights!"
    header = {"t": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}
    text = json.dumps(header).encode().ljust(HEADER_BYTES_MAX + beyond)
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    if beyond > 0:
        assert event["event"] == "error"
        assert "HeaderTooLarge" in event["message"]
        assert str(HEADER_BYTES_MAX + beyond) in event["message"]
    else:
        assert event["event"] == "done", event
        assert event["decision"]["effective"] == STAGED
        assert event["digests"] == {"t": hashlib.sha256(content).hexdigest()}


def test_tensors_that_overlap_are_both_named(daemon, data_dir, start_rank):
    header = (
        '{"first":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},'
        '"second":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
    )
    checkpoints.save_header(data_dir / "model.safetensors", header, 8)
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    assert event["event"] == "error"
    assert "'first'" in event["message"] and "'second'" in event["message"]
    assert "InvalidOffset" in event["message"]
