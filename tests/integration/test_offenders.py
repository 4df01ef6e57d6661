"""One offender never hides another: whoever refuses a checkpoint names all that is wrong with it.

client/cli/offender_pairs_test.cc goes through every pair of faults in one process; here all of them
are in one checkpoint, and the programs are asked.
"""

import json
import os
import stat

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.checkpoints import save_header

LFS_POINTER = (
    "version https-git-lfs.spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 4976698672\n"
)
# Root that may not read what is forbidden to it.
WITHOUT_RIGHTS = "-fowner,-dac_override,-dac_read_search"
AS_ANYBODY = ["setpriv", f"--bounding-set={WITHOUT_RIGHTS}", f"--inh-caps={WITHOUT_RIGHTS}"]


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def replace(make):
    def act(path):
        path.unlink()
        make(path)

    return act


# What is done to a shard, and what is said of it.
FAULTS = {
    "missing": (lambda path: path.unlink(), "missing"),
    "being fetched": (
        replace(lambda path: (path.parent / f"{path.name}.incomplete").write_text("x")),
        ".safetensors.incomplete",
    ),
    "empty": (lambda path: os.truncate(path, 0), "an empty file"),
    "cut": (cut, "a cut download"),
    "pointer": (lambda path: path.write_text(LFS_POINTER), "git-LFS pointer"),
    "absurd length": (lambda path: path.write_bytes(b"\xff" * 64), "HeaderTooLarge"),
    "no JSON": (lambda path: save_header(path, "{nonsense"), "InvalidHeaderDeserialization"),
    "overlap": (
        lambda path: save_header(
            path,
            '{"o.a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
            '"o.b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}',
            6,
        ),
        "overlap by 2 bytes",
    ),
    "dtype": (
        lambda path: save_header(path, '{"d":{"dtype":"F9","shape":[4],"data_offsets":[0,4]}}', 4),
        "'F9'",
    ),
    "shape": (
        lambda path: save_header(path, '{"s":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}}', 4),
        "TensorInvalidInfo",
    ),
    "FIFO": (replace(lambda path: os.mkfifo(path)), "a FIFO"),
    "directory": (replace(lambda path: path.mkdir()), "a directory"),
    "device": (
        replace(lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))),
        "a device",
    ),
    "link": (replace(lambda path: path.symlink_to("../../blobs/gone")), "../../blobs/gone"),
    "forbidden": (lambda path: path.chmod(0), "EACCES"),
}


def make_faults(directory, indexed):
    """A checkpoint with every fault; (what must be said of it, shards that are sound)."""
    count = len(FAULTS) + 5
    tensors = {f"t{i:02}": numpy.full((64,), i, "uint8") for i in range(count)}
    checkpoints.save_sharded(directory, tensors, count, index=False)
    paths = checkpoints.shard_paths(directory)
    weight_map = {name: path.name for name, path in zip(sorted(tensors), paths)}
    said = []
    for path, (act, text) in zip(paths, FAULTS.values()):
        act(path)
        said += [path.name, text]
    first, second, lacks = paths[-5:-2]
    for path in [first, second]:
        checkpoints.save(path, {"in.two": tensors["t00"], path.name: tensors["t01"]})
        del weight_map[sorted(tensors)[paths.index(path)]]
        weight_map[path.name] = path.name
    said += ["'in.two' in", first.name, second.name]
    if indexed:
        weight_map |= {
            "lacking": lacks.name,
            "out": "../out.safetensors",
            "absolute": "/etc/absolute.safetensors",
            "number": 7,
            "kind": "pytorch_model.bin",
        }
        said += ["'lacking' is not in", lacks.name, "'../out.safetensors' (for 'out')"]
        said += ["'/etc/absolute.safetensors'", "'number'", "'pytorch_model.bin'"]
        document = json.dumps({"weight_map": weight_map})
        twice = f'"weight_map": {{"{sorted(tensors)[-1]}": "{paths[-1].name}", '
        document = document.replace('"weight_map": {', twice)
        said += [f"1 key twice: '{sorted(tensors)[-1]}'"]
        (directory / checkpoints.INDEX_NAME).write_text(document)
    return said, [path.name for path in paths[-2:]]


def errors(finished):
    return finished.json["error"]


def errors_of_ranks(finished):
    (error,) = {rank["error"] for rank in finished.json["ranks"]}
    return error


COMMANDS = {
    "ls": (["ls"], errors),
    "doctor": (["doctor"], errors),
    "stage": (["stage", "--once"], errors),
    "load": (["load", "--ranks", "2"], errors_of_ranks),
    "native load": (["load", "--ranks", "2", "--no-daemon"], errors_of_ranks),
}


@pytest.mark.parametrize("indexed", [False, True], ids=["names", "index"])
@pytest.mark.parametrize("command", COMMANDS)
def test_all_faults_of_a_checkpoint_are_named_at_once(
    command, indexed, cli, daemon, data_dir, need_root
):
    said, sound = make_faults(data_dir, indexed)
    words, error_of = COMMANDS[command]
    cli.wrapper = AS_ANYBODY
    finished = cli.run(*words, data_dir, "--json", code=1)
    error = error_of(finished)
    for text in [str(data_dir), *said]:
        assert text in error
    assert finished.stderr.count("forestage: EACCES: give uid 0 the right to read") == 1
    for name in sound:
        # But for the key that the index has twice.
        assert name not in error
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()


@pytest.mark.parametrize(
    "command, where",
    [
        ("load", "headers"),
        ("load", "data"),
        ("native load", "headers"),
        ("native load", "data"),
        ("stage", "headers"),
        ("stage", "data"),
        ("ls", "headers"),
        ("doctor", "headers"),
    ],
)
def test_errors_of_storage_in_several_shards_are_all_named(
    command, where, cli, daemon, data_dir, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=4, mib=12)
    paths = checkpoints.shard_paths(data_dir)
    slowfs = mount_slowfs(data_dir)
    begin = 0 if where == "headers" else 2 << 20
    for path, kind in [(paths[0], "eio"), (paths[2], "estale")]:
        slowfs.fault(path.name, begin, begin + (64 << 10), kind)
    words, error_of = COMMANDS[command]
    finished = cli.run(*words, slowfs.mount, "--json", code=1)
    error = error_of(finished)
    for path, name in [(paths[0], "EIO"), (paths[2], "ESTALE")]:
        assert path.name in error and name in error
        # What to do, once a kind and not once a file or rank.
        assert finished.stderr.count(f"forestage: {name}: ") == 1
        assert f"forestage: {name}: " not in error
    for path in [paths[1], paths[3]]:
        assert path.name not in error


def test_a_download_that_goes_on_is_named_where_hugging_face_keeps_it(
    cli_without_daemon, data_dir
):
    plain = checkpoints.make_model(data_dir / "plain", shards=3, mib=3)
    snapshot = checkpoints.make_hugging_face_cache(data_dir / "cache", plain)
    blob = checkpoints.shard_paths(snapshot)[1].resolve()
    blob.rename(blob.parent / f"{blob.name}.incomplete")
    checkpoints.shard_paths(snapshot)[1].unlink()
    error = cli_without_daemon.json("ls", snapshot, code=1)["error"]
    assert f"{blob.name}.incomplete" in error and "missing" in error
    downloads = plain / ".cache" / "huggingface" / "download"
    downloads.mkdir(parents=True)
    path = checkpoints.shard_paths(plain)[1]
    path.rename(downloads / "0123abcd.incomplete")
    error = cli_without_daemon.json("ls", plain, code=1)["error"]
    assert "0123abcd.incomplete" in error and path.name in error


def test_an_error_names_so_many_and_counts_the_others(cli_without_daemon, data_dir):
    data_dir.mkdir(exist_ok=True)
    for i in range(1300):
        (data_dir / f"model-{i + 1:05}-of-01300.safetensors").write_text("x")
    error = cli_without_daemon.json("ls", data_dir, code=1)["error"]
    assert error.count("HeaderTooSmall") == 1000
    assert "and 300 more" in error
