"""Every byte that a load delivers is what the real safetensors reader gives."""

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.checkpoints import random_array, save, save_raw, save_sharded

SEED = 20240517


def make_numpy_dtypes(directory):
    random = numpy.random.default_rng(SEED)
    tensors = {}
    for dtype in checkpoints.NUMPY_DTYPES:
        tensors[f"{dtype}.matrix"] = random_array(random, dtype, (7, 5))
        tensors[f"{dtype}.scalar"] = random_array(random, dtype, ())
        tensors[f"{dtype}.one_row"] = random_array(random, dtype, (1, 3))
        tensors[f"{dtype}.empty"] = random_array(random, dtype, (0, 5))
        tensors[f"{dtype}.empty_rows"] = random_array(random, dtype, (5, 0))
    save(directory / "model.safetensors", tensors, metadata={"format": "np"})


def make_dtypes_without_numpy(directory):
    random = numpy.random.default_rng(SEED)
    bits = {
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "F8_E4M3": 8,
        "F8_E5M2": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "BF16": 16,
    }
    tensors = [
        (f"{dtype}.matrix", dtype, (6, 4), random.bytes(6 * 4 * size // 8))
        for dtype, size in bits.items()
    ]
    tensors += [(f"{dtype}.empty", dtype, (0, 4), b"") for dtype in bits]
    save_raw(directory / "model.safetensors", tensors)


def make_odd_offsets(directory):
    """Neither the header nor any tensor behind the first byte is aligned."""
    random = numpy.random.default_rng(SEED)
    for shard, padding in enumerate([0, 1, 3]):
        tensors = [
            (f"s{shard}.byte", "U8", (1,), random.bytes(1)),
            (f"s{shard}.wide", "F64", (301, 3), random.bytes(301 * 3 * 8)),
            (f"s{shard}.big", "BF16", (513, 1025), random.bytes(513 * 1025 * 2)),
            (f"s{shard}.last", "I16", (3,), random.bytes(6)),
        ]
        save_raw(directory / f"part{shard}.safetensors", tensors, header_padding=padding)


def make_odd_names(directory):
    names = [
        "",
        "with space",
        "../../up",
        "line\nbreak",
        "100%",
        "\U0001f600",
        "层.权重",
        "a\u0000b",
    ]
    random = numpy.random.default_rng(SEED)
    tensors = [(name, "U8", (9,), random.bytes(9)) for name in names]
    save_raw(directory / "model.safetensors", tensors, metadata={"k": "v"})


def make_single_file(directory):
    random = numpy.random.default_rng(SEED)
    tensors = {f"layers.{i}.weight": random_array(random, "float32", (129, 257)) for i in range(12)}
    save(directory / "model.safetensors", tensors)


def make_index_with_shards(directory):
    checkpoints.make_model(directory, seed=SEED, shards=4, mib=4)
    (directory / "config.json").write_text("{}")
    (directory / "README.md").write_text("not a weight file")


def make_shards_without_index(directory):
    checkpoints.make_model(directory, seed=SEED, shards=3, mib=3, index=False)


def make_many_small_shards(directory):
    """More files than one message of the descriptor socket carries descriptors."""
    random = numpy.random.default_rng(SEED)
    tensors = {f"t{i}": random_array(random, "int8", (i % 7, 3)) for i in range(300)}
    save_sharded(directory, tensors, 300)


def make_no_tensors(directory):
    checkpoints.save_header(directory / "model.safetensors", "{}")


MAKERS = [
    make_numpy_dtypes,
    make_dtypes_without_numpy,
    make_odd_offsets,
    make_odd_names,
    make_single_file,
    make_index_with_shards,
    make_shards_without_index,
    make_many_small_shards,
    make_no_tensors,
]


@pytest.mark.parametrize("share", ["all", "rows"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__.removeprefix("make_"))
def test_digests_equal_the_reference(make, share, cli, data_dir, digests_path, check_digests):
    make(data_dir)
    result = cli.load(data_dir, ranks=3, share=share, digests=digests_path)
    check_digests(data_dir, 3, share)
    for rank in result["ranks"]:
        assert rank["effective"] == "rank_striped_read_ahead", rank
        assert rank["requested"] == "auto"
        assert rank["activated"] is True


@pytest.mark.parametrize("share", ["all", "rows"])
def test_native_digests_equal_the_reference(
    share, cli_without_daemon, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, seed=SEED, shards=3, mib=3)
    result = cli_without_daemon.load(
        data_dir, ranks=2, share=share, digests=digests_path, flags=["--no-daemon"]
    )
    check_digests(data_dir, 2, share)
    for rank in result["ranks"]:
        assert rank["effective"] == "native" and rank["reason"]
        assert rank["activated"] is False


def test_a_missing_daemon_is_said_and_harmless(
    cli_without_daemon, data_dir, digests_path, check_digests
):
    make_single_file(data_dir)
    result = cli_without_daemon.load(data_dir, ranks=2, digests=digests_path)
    check_digests(data_dir, 2)
    for rank in result["ranks"]:
        assert rank["effective"] == "native"
        assert cli_without_daemon.socket in rank["reason"], rank["reason"]


def test_a_hugging_face_cache_of_links_is_followed(
    cli, data_dir, digests_path, check_digests, tmp_path
):
    plain = tmp_path / "plain"
    plain.mkdir()
    make_index_with_shards(plain)
    link_tree = checkpoints.make_hugging_face_cache(data_dir, plain)
    result = cli.load(link_tree, ranks=2, digests=digests_path)
    check_digests(link_tree, 2)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}


def test_verify_compares_every_byte_with_a_read_of_its_own(cli, data_dir, digests_path):
    make_index_with_shards(data_dir)
    result = cli.load(data_dir, ranks=2, digests=digests_path, flags=["--verify"])
    needed = sum(len(content) for _, content in checkpoints.read_reference(data_dir).values())
    for rank in result["ranks"]:
        assert rank["bytes"] == needed
        assert rank["mismatched"] == 0
        assert rank["verified"]


def test_ls_lists_what_the_reference_reader_sees(cli_without_daemon, data_dir):
    make_index_with_shards(data_dir)
    listed = cli_without_daemon.json("ls", data_dir)
    reference = checkpoints.read_reference(data_dir)
    assert {tensor["name"] for tensor in listed["tensors"]} == reference.keys()
    for tensor in listed["tensors"]:
        shape, content = reference[tensor["name"]]
        assert tuple(tensor["shape"]) == shape
        file = (data_dir / tensor["shard"]).read_bytes()
        assert file[tensor["begin"] : tensor["end"]] == content
    assert listed["total_bytes"] == checkpoints.total_bytes(data_dir)
    assert {shard["name"]: shard["bytes"] for shard in listed["shards"]} == {
        path.name: path.stat().st_size for path in checkpoints.shard_paths(data_dir)
    }


def test_a_demo_checkpoint_is_one_for_the_reference_reader(
    cli, data_dir, digests_path, check_digests
):
    directory = data_dir / "demo"
    cli.run("demo", directory, "--size", "16MiB", "--shards", "3")
    assert len(checkpoints.shard_paths(directory)) == 3
    assert (directory / checkpoints.INDEX_NAME).exists()
    cli.load(directory, ranks=2, digests=digests_path, flags=["--verify"])
    check_digests(directory, 2)
