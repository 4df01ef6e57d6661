"""Directories of checkpoints as people really have them: half downloaded, copied, mixed, linked.

docs/field_reports.md says which complaint is shown by which test.
"""

import hashlib
import os
import re
import shutil
import socket
import stat

import numpy
import pytest

from forestage_testing import checkpoints, foreign_files
from forestage_testing.cli import read_digests

STAGED = "rank_striped_read_ahead"
# Root that may not read what is forbidden to it.
WITHOUT_RIGHTS = "-fowner,-dac_override,-dac_read_search"
AS_ANYBODY = ["setpriv", f"--bounding-set={WITHOUT_RIGHTS}", f"--inh-caps={WITHOUT_RIGHTS}"]
LFS_POINTER = (
    "version https-git-lfs.spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 4976698672\n"
)
# With the daemon and without: the rank's error is the same.
WAYS = {"daemon": [], "native": ["--no-daemon"]}


@pytest.fixture(params=WAYS)
def load_fails(request, cli, daemon, digests_path):
    """load_fails(directory): what a load says that must fail, whatever the way."""

    def load(directory):
        finished = cli.start_load(
            directory, ranks=2, digests=digests_path, flags=WAYS[request.param]
        ).finish(code=1)
        assert not digests_path.exists() or not read_digests(digests_path)
        assert daemon.health() == "SERVING"
        daemon.wait_for_no_sessions()
        (error,) = {rank["error"] for rank in finished.json["ranks"]}
        return error

    return load


def cuts_of(path):
    """Lengths at which downloads break off: inside and at the end of each part of a file."""
    whole = path.stat().st_size
    header_end = min(begin for begin, _ in checkpoints.data_ranges(path).values())
    return {
        "nothing": 0,
        "length_field_but_one": 7,
        "length_field": 8,
        "middle_of_header": header_end // 2,
        "header": header_end,
        "middle_of_tensor": (header_end + whole) // 2,
        "all_but_one": whole - 1,
    }


CUTS = [
    "nothing",
    "length_field_but_one",
    "length_field",
    "middle_of_header",
    "header",
    "middle_of_tensor",
    "all_but_one",
]


@pytest.mark.parametrize("cut", CUTS)
def test_a_download_that_broke_off_is_named_with_how_much_of_it_is_there(
    cut, load_fails, data_dir
):
    checkpoints.make_model(data_dir, shards=2, mib=2, index=False)
    path = checkpoints.shard_paths(data_dir)[1]
    whole = path.stat().st_size
    length = cuts_of(path)[cut]
    os.truncate(path, length)
    error = load_fails(data_dir)
    assert path.name in error
    assert f"{length} bytes" in error
    if cut in ("header", "middle_of_tensor", "all_but_one"):
        assert f"{length} bytes of {whole}" in error


def test_all_of_a_hundred_shards_that_are_short_are_listed_with_what_they_lack(
    load_fails, data_dir
):
    random = numpy.random.default_rng(4)
    tensors = {f"t{i}": checkpoints.random_array(random, "int8", (999,)) for i in range(102)}
    checkpoints.save_sharded(data_dir, tensors, 102)
    paths = checkpoints.shard_paths(data_dir)
    short = paths[3::13]
    for path in short:
        os.truncate(path, path.stat().st_size - 301)
    error = load_fails(data_dir)
    for path in paths:
        assert (path.name in error) == (path in short)
    assert error.count("a cut download") == len(short) == 8


def test_faults_of_every_kind_are_listed_together(load_fails, data_dir):
    """Missing, linked to nothing, damaged, a pointer, no file: none hides another."""
    checkpoints.make_model(data_dir, shards=7, mib=7)
    paths = checkpoints.shard_paths(data_dir)
    paths[0].unlink()
    paths[1].unlink()
    paths[1].symlink_to("../../blobs/0123")
    os.truncate(paths[2], 100)
    paths[3].write_text(LFS_POINTER)
    paths[4].unlink()
    paths[4].mkdir()
    error = load_fails(data_dir)
    for path, said in zip(paths, ["missing", "../../blobs/0123", "100 bytes", "LFS", "directory"]):
        assert path.name in error and said in error
    for path in paths[5:]:
        assert path.name not in error


def test_files_that_may_not_be_opened_are_listed_with_those_that_are_damaged(
    daemon, data_dir, start_rank, need_root
):
    checkpoints.make_model(data_dir, shards=5, mib=5)
    paths = checkpoints.shard_paths(data_dir)
    for path in paths[:2]:
        path.chmod(0)
    os.truncate(paths[2], 10)
    event = start_rank(data_dir, socket=daemon.socket, wrapper=AS_ANYBODY).outcome()
    assert event["event"] == "error"
    for path, said in zip(paths, ["EACCES", "EACCES", "10 bytes"]):
        assert path.name in event["message"] and said in event["message"]
    for path in paths[3:]:
        assert path.name not in event["message"]


def test_a_missing_shard_is_an_error_before_the_first_byte_is_served(
    daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=3, mib=6)
    paths = checkpoints.shard_paths(data_dir)
    paths[1].unlink()
    slowfs = mount_slowfs(data_dir)
    event = start_rank(slowfs.mount, socket=daemon.socket).outcome()
    assert event["event"] == "error" and paths[1].name in event["message"]
    # Headers only, as far as the kernel reads them.
    assert slowfs.weight_bytes() <= 2 * (256 << 10)


def test_numbers_that_are_missing_are_found_without_an_index(load_fails, data_dir):
    checkpoints.make_model(data_dir, shards=30, mib=30, index=False)
    paths = checkpoints.shard_paths(data_dir)
    for path in paths[15:]:
        path.unlink()
    error = load_fails(data_dir)
    assert "15 shards" in error
    for path in paths:
        assert (path.name in error) == (path in paths[15:])


def make_both_layouts(directory):
    """Sharded and consolidated weights of one model side by side, as some vendors publish them."""
    checkpoints.make_model(directory, shards=2, mib=4)
    tensors = {f"layers.{i}": numpy.zeros((1 << 20,), "uint8") for i in range(3)}
    checkpoints.save(directory / "consolidated.safetensors", tensors)
    (directory / "original").mkdir()
    checkpoints.save(directory / "original" / "model.safetensors", tensors)


def sharded_bytes(directory):
    return sum(path.stat().st_size for path in directory.glob("model-*.safetensors"))


def test_of_two_layouts_the_one_of_the_index_is_read_and_no_byte_of_the_other(
    cli, data_dir, mount_slowfs, digests_path
):
    make_both_layouts(data_dir)
    slowfs = mount_slowfs(data_dir)
    cli.load(slowfs.mount, ranks=2, digests=digests_path)
    files = slowfs.stats()["files"]
    assert not [name for name in files if "consolidated" in name or "original" in name]
    assert slowfs.weight_bytes() == sharded_bytes(data_dir)


def test_sizes_and_plans_count_the_chosen_layout_and_list_what_is_ignored_and_why(
    cli, cli_without_daemon, data_dir
):
    make_both_layouts(data_dir)
    (data_dir / "pytorch_model.bin").write_bytes(b"GGUF")
    listed = cli_without_daemon.json("ls", data_dir)
    assert listed["total_bytes"] == sharded_bytes(data_dir)
    reasons = {file["name"]: file["reason"] for file in listed["ignored"]}
    assert reasons.keys() == {"consolidated.safetensors", "pytorch_model.bin"}
    assert checkpoints.INDEX_NAME in reasons["consolidated.safetensors"]
    assert "not safetensors" in reasons["pytorch_model.bin"]
    staged = cli.json("stage", data_dir, "--once")
    assert staged["bytes"] == sharded_bytes(data_dir)


def make_copies(directory):
    """Three shards, of which the second holds tensors of the others, too, as something else.

    The index means the first shard's t0 and the second's t1. Returns {name: array} of what it means
    and the names and shards of the copies that it does not mean.
    """
    random = numpy.random.default_rng(2)
    tensors = {f"t{i}": checkpoints.random_array(random, "uint8", (2 << 20,)) for i in range(6)}
    checkpoints.save_sharded(directory, tensors, 3)
    paths = checkpoints.shard_paths(directory)
    copies = {
        # Of the same kind, of another kind, and one that the first shard holds, too.
        "t0": checkpoints.random_array(random, "uint8", (2 << 20,)),
        "t5": checkpoints.random_array(random, "float32", (3, 1 << 19)),
        "t1": tensors["t1"],
        "t4": tensors["t4"],
    }
    checkpoints.save(paths[1], copies)
    checkpoints.save(paths[0], {"t0": tensors["t0"], "t3": tensors["t3"], "t1": copies["t0"]})
    return tensors, {("t0", paths[1].name), ("t5", paths[1].name), ("t1", paths[0].name)}


@pytest.mark.parametrize("way", WAYS)
def test_of_a_tensor_in_two_shards_the_one_that_the_index_names_is_served(
    way, cli, daemon, data_dir, digests_path, mount_slowfs
):
    tensors, copies = make_copies(data_dir)
    slowfs = mount_slowfs(data_dir)
    for flags in [[], ["--own"]]:
        digests_path.unlink(missing_ok=True)
        result = cli.load(
            slowfs.mount, ranks=2, digests=digests_path, flags=[*flags, "--verify", *WAYS[way]]
        )
        effective = {rank["effective"] for rank in result["ranks"]}
        assert effective == ({STAGED} if way == "daemon" else {"native"})
        assert read_digests(digests_path) == {
            (rank, name): hashlib.sha256(array.tobytes()).hexdigest()
            for name, array in tensors.items()
            for rank in range(2)
        }
    listed = cli.json("ls", data_dir)
    assert {tensor["name"] for tensor in listed["tensors"]} == tensors.keys()
    assert {(copy["tensor"], copy["shard"]) for copy in listed["ignored_copies"]} == copies


def test_copies_that_the_index_does_not_name_are_not_read(
    daemon, start_rank, data_dir, mount_loop
):
    held = {}

    def fill(path):
        held["tensors"], held["copies"] = make_copies(path)

    device = mount_loop(fill, mib=64, read_ahead_kb=128)
    before = device.bytes_read()
    rank = start_rank(
        device.mount,
        socket=daemon.socket,
        flags=[word for name in held["tensors"] for word in ["--demand", name]],
    )
    got = rank.outcome()["digests"]
    assert got == {
        name: hashlib.sha256(array.tobytes()).hexdigest()
        for name, array in held["tensors"].items()
    }
    wanted = sum(array.nbytes for array in held["tensors"].values())
    # Half of one copy would be more.
    assert device.bytes_read() - before < wanted + (1 << 20)
    daemon.wait_for_no_sessions()


def test_doctor_warns_once_of_tensors_in_two_shards(cli, data_dir):
    _, copies = make_copies(data_dir)
    finished = cli.run("doctor", data_dir)
    (warning,) = [line for line in finished.stdout.splitlines() if line.startswith("WARNING")]
    assert "3 tensors" in warning and "the index decides" in warning
    for tensor, shard in copies:
        assert re.search(rf"{tensor}: served from .*, ignored in {shard}", finished.stdout)
    assert finished.stdout.count("dtype or shape differ") == 1
    document = cli.json("doctor", data_dir)
    assert document["sound"]
    assert {(copy["tensor"], copy["shard"]) for copy in document["ignored_copies"]} == copies
    assert [copy["tensor"] for copy in document["ignored_copies"] if copy["differs"]] == ["t5"]


def test_a_tensor_in_two_shards_is_an_error_without_an_index_that_names_tensor_and_shards(
    load_fails, data_dir
):
    random = numpy.random.default_rng(2)
    tensors = {f"t{i}": checkpoints.random_array(random, "int8", (99,)) for i in range(6)}
    checkpoints.save_sharded(data_dir, tensors, 3, index=False)
    paths = checkpoints.shard_paths(data_dir)
    extra = {name: tensors[name] for name in ["t0", "t1", "t4"]}
    checkpoints.save(paths[1], extra)
    error = load_fails(data_dir)
    assert "1 tensor name occurs in more than one shard" in error and "'t0'" in error
    assert paths[0].name in error and paths[1].name in error
    assert paths[2].name not in error


FOREIGN = foreign_files.FILES


@pytest.mark.parametrize("name", FOREIGN)
def test_weights_of_other_formats_are_known_by_content_and_it_is_said_what_to_do(
    name, load_fails, data_dir
):
    content, said = FOREIGN[name]
    (data_dir / name).write_bytes(content)
    # A name that has "safetensors" in it makes no safetensors checkpoint.
    (data_dir / "note_on_safetensors.json").write_text("{}")
    (data_dir / "config.json").write_text("{}")
    error = load_fails(data_dir)
    assert name in error and said in error
    assert "not served yet" in error and "the engine's own loader" in error
    assert "note_on_safetensors" not in error and "config.json" not in error


def test_a_file_of_another_format_under_our_name_is_said_to_be_one(load_fails, data_dir):
    (data_dir / "model.safetensors").write_bytes(FOREIGN["pytorch_model.bin"][0])
    error = load_fails(data_dir)
    assert "torch.save" in error and "not served yet" in error


def test_safetensors_under_another_name_are_said_to_be_some(load_fails, data_dir):
    checkpoints.save(data_dir / "pytorch_model.bin", {"t": numpy.zeros(3)})
    error = load_fails(data_dir)
    assert "pytorch_model.bin" in error and "rename" in error


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_PATH)
    # A path below the build directory may be longer than a socket's may be.
    listener.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)
    listener.close()


def make_device(path):
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


NO_FILES = {
    "directory": lambda path: path.mkdir(),
    "FIFO": make_fifo,
    "socket": make_socket,
    "device": make_device,
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("indexed", [False, True])
def test_what_is_named_like_a_shard_and_is_no_file_is_an_error_and_never_hangs(
    indexed, kind, load_fails, data_dir, need_root
):
    name = "model-00001-of-00001.safetensors"
    NO_FILES[kind](data_dir / name)
    if indexed:
        (data_dir / checkpoints.INDEX_NAME).write_text('{"weight_map":{"t":"%s"}}' % name)
    error = load_fails(data_dir)
    assert name in error
    assert ("circle" if kind == "loop" else kind) in error


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_beside_good_shards_is_an_error_for_every_command(
    kind, cli, daemon, data_dir, need_root
):
    checkpoints.make_model(data_dir, shards=2, mib=2, index=False)
    NO_FILES[kind](data_dir / "d.safetensors")
    errors = []
    for command in (["ls"], ["doctor"], ["stage", "--once"], ["load", "--ranks", "1"]):
        finished = cli.run(*command, data_dir, "--json", code=1)
        errors.append(finished.json.get("error") or finished.json["ranks"][0]["error"])
    for error in errors:
        assert "'d.safetensors'" in error
        assert ("circle" if kind == "loop" else f"is a {kind}") in error


def test_an_empty_directory_is_said_to_have_no_weights(load_fails, data_dir):
    assert "no weights" in load_fails(data_dir)


@pytest.fixture
def cache(data_dir, tmp_path):
    """(snapshot, plain): a cache of links and the same files without."""
    plain = checkpoints.make_model(tmp_path / "plain", shards=3, mib=3)
    return checkpoints.make_hugging_face_cache(data_dir / "cache", plain), plain


def test_links_to_blobs_that_are_gone_are_named_with_their_targets(load_fails, cache):
    snapshot, _ = cache
    links = checkpoints.shard_paths(snapshot)
    for link in links[:2]:
        link.resolve().unlink()
    error = load_fails(snapshot)
    for link in links[:2]:
        assert link.name in error and os.readlink(link) in error
    assert links[2].name not in error
    assert "no weights" not in error


def test_a_snapshot_that_was_copied_without_its_blobs_is_said_to_hold_links_only(
    load_fails, cache, data_dir
):
    snapshot, _ = cache
    copied = data_dir / "copied" / "model"
    shutil.copytree(snapshot, copied, symlinks=True)
    error = load_fails(copied)
    assert checkpoints.INDEX_NAME in error
    assert "which does not exist" in error
    (copied / checkpoints.INDEX_NAME).unlink()
    error = load_fails(copied)
    for link in checkpoints.shard_paths(copied):
        assert link.name in error and os.readlink(link) in error


def test_a_snapshot_is_loaded_from_its_links_and_found_from_another_directory(
    cli, cache, digests_path, check_digests, tmp_path
):
    snapshot, _ = cache
    # Whoever named the snapshot by a link to it means its links all the same.
    (tmp_path / "current").symlink_to(snapshot)
    result = cli.load(tmp_path / "current", ranks=2, digests=digests_path, cwd=tmp_path)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
    check_digests(snapshot, 2)


def test_two_snapshots_that_share_a_blob_read_it_once(
    daemon, cli, cache, data_dir, mount_slowfs, digests_path, check_digests
):
    snapshot, plain = cache
    second = snapshot.parent / ("fedcba9876543210" * 2)
    shutil.copytree(snapshot, second, symlinks=True)
    # The second revision has one shard of its own.
    link = checkpoints.shard_paths(second)[2]
    own = snapshot.parent.parent / "blobs" / "own"
    content = bytearray(link.read_bytes())
    content[-1] ^= 1
    own.write_bytes(content)
    link.unlink()
    link.symlink_to("../../blobs/own")
    slowfs = mount_slowfs(data_dir / "cache")
    mounted = [slowfs.mount / path.relative_to(data_dir / "cache") for path in [snapshot, second]]
    for path in mounted:
        digests_path.unlink(missing_ok=True)
        result = cli.load(path, ranks=2, digests=digests_path)
        assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
        check_digests(path, 2)
    files = slowfs.stats()["files"].items()
    blobs = {name.rpartition("/")[2]: file["bytes"] for name, file in files if "blobs" in name}
    shards = [path.resolve() for path in [*checkpoints.shard_paths(snapshot), own]]
    assert {path.name: path.stat().st_size for path in shards}.items() <= blobs.items()


def test_a_name_stored_once_of_two_tied_ones_is_served_and_the_other_is_not_invented(
    daemon, data_dir, start_rank
):
    random = numpy.random.default_rng(6)
    embedding = checkpoints.random_array(random, "float32", (64, 16))
    checkpoints.save(data_dir / "model.safetensors", {"model.embed_tokens.weight": embedding})
    flags = ["--demand", "lm_head.weight"]
    event = start_rank(data_dir, socket=daemon.socket, flags=flags).outcome()
    assert event["event"] == "error" and "lm_head.weight" in event["message"]
    checkpoints.save(
        data_dir / "model.safetensors",
        {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding},
    )
    event = start_rank(data_dir, socket=daemon.socket).outcome()
    assert len(event["digests"]) == 2
    assert len(set(event["digests"].values())) == 1
