"""Files that are replaced, deleted, cut or grown under a load, at each of its steps.

A rank keeps what it has opened: a replaced or deleted file stays whole for it. What can be had no
more is an error that names the file, and no signal. The next load sees what is there now.
"""

import os

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.processes import GUARD_SECONDS

HELD_FROM = 1 << 20
STAGED = "rank_striped_read_ahead"


def replace(path):
    """By another checkpoint's shard with the same tensors, as a download does."""
    tensors = {
        name: (shape, content[::-1])
        for name, (shape, content) in checkpoints.read_reference(path.parent).items()
        if name in checkpoints.data_ranges(path)
    }
    arrays = {name: numpy.frombuffer(content, "uint8") for name, (_, content) in tensors.items()}
    new = path.with_name("new")
    checkpoints.save(new, arrays)
    os.replace(new, path)


def delete(path):
    path.unlink()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def grow(path):
    with open(path, "ab") as file:
        file.write(bytes(100))


CHANGES = {change.__name__: change for change in [replace, delete, cut, grow]}
# The header is being read; what is behind it is being staged; everything is in memory and half of
# it was handed out.
STEPS = ["headers", "staging", "staged"]


@pytest.fixture
def checkpoint(data_dir):
    random = numpy.random.default_rng(11)
    tensors = {
        f"t{i:02}": checkpoints.random_array(random, "uint8", (1 << 20,)) for i in range(12)
    }
    return checkpoints.save_sharded(data_dir / "checkpoint", tensors, 2)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_a_load(
    change, step, daemon, checkpoint, mount_slowfs, start_rank
):
    path = checkpoints.shard_paths(checkpoint)[1]
    before = checkpoints.expected_digests(checkpoint, 1, "all")
    slowfs = mount_slowfs(checkpoint, flags=["--attribute-timeout", "0"])
    if step == "staged":
        flags = ["--pause-after", "6"]
    else:
        slowfs.hold(path.name, 0 if step == "headers" else HELD_FROM)
        flags = []
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=flags)
    if step == "staged":
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("paused")
    else:
        slowfs.wait_until_held()
    CHANGES[change](path)
    slowfs.release()
    if step == "staged":
        rank.resume()
    event = rank.outcome()
    # A header that does not fit the file any more is one that was never sound.
    if change == "cut" or (change, step) == ("grow", "headers"):
        assert event["event"] == "error"
        assert path.name in event["message"]
    else:
        assert event["event"] == "done", event
        assert rank.digests(event) == before
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()

    again = start_rank(slowfs.mount, socket=daemon.socket).outcome()
    if change == "replace":
        assert again["event"] == "done", again
        after = checkpoints.expected_digests(checkpoint, 1, "all")
        assert {(0, name): digest for name, digest in again["digests"].items()} == after
        assert after != before
    else:
        assert again["event"] == "error"
        assert path.name in again["message"]
