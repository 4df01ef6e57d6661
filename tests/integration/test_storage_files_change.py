"""Files that are replaced, deleted, cut, grown or written over under a load, at each of its steps.

A rank keeps what it has opened: a replaced or deleted file stays whole for it. A file that is
written to is no longer what was opened, and is an error that names it: never a signal, never bytes
of two versions. The next load sees what is there now.

Every change is made at every step, with the daemon and without.
"""

import os
import signal

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.processes import wait_until

HELD_FROM = 1 << 20
STAGED = "rank_striped_read_ahead"
TENSOR_COUNT = 12
SHARDS = 2


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


def write_over(path):
    """The same header and as many bytes, others: a save over the file in place."""
    begin = min(begin for begin, _ in checkpoints.data_ranges(path).values())
    content = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(content[begin:][::-1])


def zero(path):
    """What a writer leaves that died after it had truncated the file and set its length."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


CHANGES = {
    change.__name__: change for change in [replace, delete, cut, grow, write_over, zero]
}
# Changes after which the file of this name is a sound one, of other bytes.
SOUND_AFTERWARDS = ["replace", "write_over"]
# Changes that leave what a rank has opened as it was.
OPENED_FILE_KEPT = ["replace", "delete"]

# Where a load stands when the file changes; each is reached by what really holds up loads.
STEPS = {
    "selection": "the directory is listed, the index is being read",
    "open": "all files are open, the daemon does not answer yet",
    "headers": "the header of the file is being read",
    "staging": "the header is known, what is behind it is being read",
    "hand-out": "everything is in memory, and half of it was handed out",
    "later": "everything was handed out, and the session is held",
}
WAYS = {"daemon": [], "native": ["--policy", "native"]}
# A rank that needs no daemon does not wait for one.
POINTS = [(way, step) for way in WAYS for step in STEPS if (way, step) != ("native", "open")]


@pytest.fixture
def checkpoint(data_dir):
    random = numpy.random.default_rng(11)
    tensors = {
        f"t{i:02}": checkpoints.random_array(random, "uint8", (1 << 20,))
        for i in range(TENSOR_COUNT)
    }
    return checkpoints.save_sharded(data_dir / "checkpoint", tensors, SHARDS)


class ChangingLoad:
    """One rank that stops at a step."""

    def __init__(self, step, slowfs, path, daemon):
        self.step = step
        self.slowfs = slowfs
        self.path = path
        self.daemon = daemon
        self.flags = {"hand-out": ["--pause-after", "6"], "later": ["--hold"]}.get(step, [])
        hold = {
            "selection": (checkpoints.INDEX_NAME, 0),
            "headers": (path.name, 0),
            "staging": (path.name, HELD_FROM),
        }
        if step in hold:
            slowfs.hold(*hold[step])
        if step == "open":
            os.kill(daemon.pid, signal.SIGSTOP)

    def wait_until_there(self, rank, way):
        if self.step in ("hand-out", "later"):
            decision = rank.expect("opened")["decision"]
            assert decision["effective"] == (STAGED if way == "daemon" else "native"), decision
            rank.expect("paused" if self.step == "hand-out" else "holding")
        elif self.step == "open":
            # The rank is on its way to the daemon.
            wait_until(lambda: self.open_shards(rank) == SHARDS, "the files to be open")
        else:
            self.slowfs.wait_until_held()

    def open_shards(self, rank):
        """On a disk: on FUSE a rank may have its files opened by the daemon."""
        links = f"/proc/{rank.pid}/fd"
        names = set()
        for descriptor in os.listdir(links):
            try:
                names.add(os.readlink(os.path.join(links, descriptor)))
            except FileNotFoundError:
                continue
        return len(names & {str(path) for path in checkpoints.shard_paths(self.path.parent)})

    @property
    def directory(self):
        return self.path.parent if self.step == "open" else self.slowfs.mount

    def go_on(self, rank):
        if self.step in ("hand-out", "later"):
            rank.resume()
        elif self.step == "open":
            os.kill(self.daemon.pid, signal.SIGCONT)
        else:
            self.slowfs.release()


def expected_digests_of(change, step, before, after):
    """What the load must deliver; None where it must say what became of the file."""
    if step == "later":
        return before
    if step == "selection":
        return after if change in SOUND_AFTERWARDS else None
    return before if change in OPENED_FILE_KEPT else None


@pytest.mark.parametrize("way, step", POINTS, ids=lambda word: word)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_a_load(
    change, way, step, daemon, checkpoint, mount_slowfs, start_rank
):
    path = checkpoints.shard_paths(checkpoint)[1]
    before = checkpoints.expected_digests(checkpoint, 1, "all")
    slowfs = mount_slowfs(checkpoint, flags=["--attribute-timeout", "0"])
    load = ChangingLoad(step, slowfs, path, daemon)
    flags = [*load.flags, *WAYS[way]]
    rank = start_rank(load.directory, socket=daemon.socket, flags=flags)
    load.wait_until_there(rank, way)
    CHANGES[change](path)
    after = None
    if change in SOUND_AFTERWARDS:
        after = checkpoints.expected_digests(checkpoint, 1, "all")
        assert after != before
    load.go_on(rank)

    event = rank.outcome()
    expected = expected_digests_of(change, step, before, after)
    if expected is None:
        assert event["event"] == "error", event
        assert path.name in event["message"]
    else:
        assert event["event"] == "done", event
        assert rank.digests(event) == expected
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()

    again = start_rank(load.directory, socket=daemon.socket)
    event = again.outcome()
    if after is None:
        assert event["event"] == "error"
        assert path.name in event["message"]
    else:
        assert event["event"] == "done", event
        assert again.digests(event) == after


def test_every_change_is_made_at_every_step():
    assert len(CHANGES) == 6
    assert len(POINTS) == 2 * len(STEPS) - 1
    print(f"{len(CHANGES) * len(POINTS)} pairs of change and step")


@pytest.mark.parametrize("change", ["cut", "write_over", "grow"])
@pytest.mark.parametrize("flags", [[], ["--copy"]], ids=["view", "copy"])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_on_a_disk_that_is_written_to_is_an_error_and_no_signal(
    way, flags, change, daemon, checkpoint, start_rank
):
    path = checkpoints.shard_paths(checkpoint)[1]
    flags = ["--pause-after", "6", *flags, *WAYS[way]]
    rank = start_rank(checkpoint, socket=daemon.socket, flags=flags)
    rank.expect("opened")
    rank.expect("paused")
    CHANGES[change](path)
    rank.resume()
    event = rank.outcome()
    assert event["event"] == "error"
    assert path.name in event["message"]
    said = ["was changed since it was opened", "the file ends here"]
    assert any(words in event["message"] for words in said), event


@pytest.mark.parametrize("change", ["cut", "write_over", "grow", "zero"])
def test_status_says_that_a_staged_file_was_changed(change, daemon, cli, checkpoint, start_rank):
    path = checkpoints.shard_paths(checkpoint)[1]
    rank = start_rank(checkpoint, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    assert "changed" not in cli.run("status").stdout
    CHANGES[change](path)
    said = cli.run("status").stdout
    assert path.name in said and "changed since it was opened" in said
    (other,) = [shard for shard in checkpoints.shard_paths(checkpoint) if shard != path]
    assert other.name not in said
    rank.resume()
    rank.finish()


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in OPENED_FILE_KEPT])
def test_stage_names_a_file_that_was_changed_after_it_was_staged(
    change, daemon, cli, checkpoint, mount_slowfs
):
    first, last = checkpoints.shard_paths(checkpoint)
    slowfs = mount_slowfs(checkpoint, flags=["--attribute-timeout", "0"])
    slowfs.hold(last.name, HELD_FROM)
    stage = cli.start("stage", "--once", slowfs.mount)
    wait_until(
        lambda: slowfs.stats()["held"] > 0
        and checkpoints.resident_bytes(slowfs.mount / first.name) >= first.stat().st_size,
        "the first file to be staged",
    )
    CHANGES[change](first)
    slowfs.release()
    finished = stage.finish(code=1)
    assert first.name in finished.stderr and last.name not in finished.stderr, finished


def rename(path):
    path.rename(path.with_name("aside"))


def give_other_rights(path):
    path.chmod(path.stat().st_mode ^ 0o040)


def link(path):
    os.link(path, path.with_name("link"))


# Changes of everything about a file but its bytes.
BYTES_KEPT = [replace, delete, rename, give_other_rights, link]


# A rename behind the mount leaves no trace on this machine but ctime.
@pytest.mark.parametrize("change", [change for change in BYTES_KEPT if change is not rename])
def test_a_file_whose_bytes_are_kept_is_staged_whatever_becomes_of_its_name(
    change, daemon, cli, checkpoint, mount_slowfs
):
    """While it is staged, and afterwards, when it is held."""
    path = checkpoints.shard_paths(checkpoint)[1]
    slowfs = mount_slowfs(checkpoint, flags=["--attribute-timeout", "0"])
    mounted = slowfs.mount / path.name
    slowfs.hold(path.name, HELD_FROM)
    stage = cli.start("stage", slowfs.mount)
    slowfs.wait_until_held()
    before = mounted.stat().st_ctime_ns
    change(path)
    if change in (give_other_rights, link):
        # This machine knows of it.
        assert mounted.stat().st_ctime_ns != before
    slowfs.release()
    while not (line := stage.process.stdout.readline()).startswith("held until"):
        assert line, stage.finish().stderr
    (staged,) = daemon.status()["checkpoints"]
    assert not staged["read_errors"] and "changed since" not in cli.run("status").stdout
    stage.signal(signal.SIGINT)
    assert "changed" not in stage.finish(code=0).stderr


@pytest.mark.parametrize("change", BYTES_KEPT)
def test_status_says_nothing_of_a_file_on_a_disk_whose_bytes_are_kept(
    change, daemon, cli, checkpoint, start_rank
):
    path = checkpoints.shard_paths(checkpoint)[1]
    rank = start_rank(checkpoint, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    change(path)
    (staged,) = daemon.status()["checkpoints"]
    assert not staged["read_errors"] and "changed since" not in cli.run("status").stdout
    rank.resume()
    rank.finish()


def test_a_changed_mode_or_a_new_link_costs_a_lease_and_no_byte(daemon, cli, data_dir):
    """Neither changes a byte, but both change ctime, by which the daemon knows a file."""
    directory = checkpoints.make_model(data_dir / "touched", mib=4)
    total = checkpoints.total_bytes(directory)
    with checkpoints.locked_in_memory(directory):
        first = cli.start("stage", directory)
        while not (line := first.process.stdout.readline()).startswith("held until"):
            assert line
        for path in checkpoints.shard_paths(directory):
            path.chmod(0o600)
        again = cli.start("stage", directory)
        while not (line := again.process.stdout.readline()).startswith("held until"):
            assert line
        held = daemon.status()
        assert [int(row.get("read_bytes", 0)) for row in held["checkpoints"]] == [0, 0]
        assert int(held["memory"]["leased_bytes"]) >= 2 * total
        for stage in [first, again]:
            stage.signal(signal.SIGINT)
            stage.finish(code=0)
