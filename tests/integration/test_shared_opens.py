"""FUSE without keep_cache, where each open of a file drops all that the page cache has of it: the
ranks of one user share the first one's open files, so that storage is read once all the same.

docs/storage.md says what happens on such a mount, docs/security.md who may get whose descriptor.
"""

import contextlib
import os
import select
import shutil
import signal

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until
from forestage_testing.raw_rank import BORROW, RawRank

NOBODY = 65534
STAGED = "rank_striped_read_ahead"
# Headers are read before the lanes begin, with what the kernel reads ahead of them.
SLACK = 1.01


@pytest.fixture
def forgetful(mount_slowfs, data_dir):
    """A checkpoint on a mount that drops a file's pages at each open of it."""
    checkpoints.make_model(data_dir, shards=3, mib=12)
    return mount_slowfs(
        data_dir,
        flags=["--keep-cache", "off", "--latency-ms", "1", "--attribute-timeout", "0"],
    )


def assert_read_once(slowfs, data_dir, ranks, shards=3):
    assert slowfs.weight_bytes() <= SLACK * checkpoints.total_bytes(data_dir)
    assert slowfs.stats()["opens"] <= shards + ranks, "each rank opens the index only"


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_come_together_read_storage_once(
    ranks, cli, forgetful, data_dir, digests_path, check_digests
):
    result = cli.load(forgetful.mount, ranks=ranks, digests=digests_path)
    assert [rank["effective"] for rank in result["ranks"]] == [STAGED] * ranks
    check_digests(data_dir, ranks)
    assert_read_once(forgetful, data_dir, ranks)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("keep_cache", ["off", "on"])
def test_ranks_that_come_one_after_another_read_storage_once(
    ranks, keep_cache, daemon, forgetful, data_dir, start_rank
):
    """Each comes when the one before has read some, the first ones are gone when the last one does."""
    forgetful.set("keep_cache", keep_cache)
    expected = checkpoints.expected_digests(data_dir, ranks, "all")
    waiting = []
    for number in range(ranks):
        rank = start_rank(
            forgetful.mount,
            socket=daemon.socket,
            rank=number,
            size=ranks,
            flags=["--pause-after", "2"],
        )
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("paused")
        waiting.append(rank)
        if len(waiting) == 3:
            finish(waiting.pop(0), expected)
    for rank in waiting:
        finish(rank, expected)
    assert_read_once(forgetful, data_dir, ranks)


def finish(rank, expected):
    rank.resume()
    done = rank.finish()
    assert done["decision"]["effective"] == STAGED
    for name, digest in rank.digests(done).items():
        assert digest == expected[name], name


def test_naming_a_file_drops_nothing(forgetful, data_dir):
    """What all of this rests on."""
    path = forgetful.mount / checkpoints.shard_paths(data_dir)[0].name
    with open(path, "rb") as file:
        file.read()
        resident = checkpoints.resident_bytes_of(file)
        assert resident >= path.stat().st_size
        opens = forgetful.stats()["opens"]
        for _ in range(3):
            with named(path) as descriptor:
                assert os.fstat(descriptor).st_size == path.stat().st_size
                os.fstatvfs(descriptor)
        assert forgetful.stats()["opens"] == opens
        assert checkpoints.resident_bytes_of(file) == resident
        os.close(os.open(path, os.O_RDONLY))
        assert checkpoints.resident_bytes_of(file) < resident


def test_ranks_without_a_daemon_open_the_files_themselves(
    cli_without_daemon, forgetful, data_dir, digests_path, check_digests
):
    result = cli_without_daemon.load(forgetful.mount, ranks=2, digests=digests_path)
    assert [rank["effective"] for rank in result["ranks"]] == ["native"] * 2
    check_digests(data_dir, 2)


def test_a_daemon_without_room_for_loans_stages_all_the_same(
    start_daemon, mount_slowfs, data_dir, build_dir, digests_path, check_digests
):
    """It refuses the second rank's question and closes the connection, as one that cannot lend."""
    shards = 40
    content = numpy.arange(40_000, dtype=numpy.int32)
    checkpoints.save_sharded(data_dir, {f"w{i:02}": content for i in range(shards)}, shards)
    slowfs = mount_slowfs(data_dir, flags=["--keep-cache", "off"])
    # One user may have 150: two ranks' own and one's loans.
    daemon = start_daemon(
        flags=["--extent-size", "256KiB"], wrapper=["prlimit", f"--nofile={5 * shards}"]
    )
    result = Cli(build_dir, daemon.socket).load(slowfs.mount, ranks=2, digests=digests_path)
    assert [rank["effective"] for rank in result["ranks"]] == [STAGED] * 2
    check_digests(data_dir, 2)
    assert slowfs.stats()["opens"] >= 2 * shards


def test_a_daemon_that_is_stopped_costs_seconds_and_not_the_whole_timeout(
    start_daemon, forgetful, data_dir, start_rank
):
    """In the middle of the exchange there is no board yet whose heartbeat could tell."""
    daemon = start_daemon(flags=["--extent-size", "256KiB"])
    forgetful.hold(checkpoints.shard_paths(data_dir)[0].name, pid=daemon.pid)
    rank = start_rank(forgetful.mount, socket=daemon.socket)
    # It has handed over its descriptors, and waits while the daemon reads the headers.
    forgetful.wait_until_held()
    os.kill(daemon.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(daemon.pid), "the daemon to stop")
    forgetful.release()
    try:
        decision = rank.expect("opened")["decision"]
        assert decision["effective"] == "native"
        assert "the daemon stands still" in decision["reason"]
        done = rank.finish()
        assert rank.digests(done) == checkpoints.expected_digests(data_dir, 1, "all")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def is_stopped(pid):
    """All of its threads, but for those that are on their way out of the kernel."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return "State:\tT" in file.read()


@pytest.fixture
def lender(daemon, forgetful, data_dir, start_rank):
    """A rank that has opened the checkpoint's files, and stays."""
    rank = start_rank(forgetful.mount, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    return rank


@contextlib.contextmanager
def named(path):
    descriptor = os.open(path, os.O_PATH)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def borrow(daemon, shown, shards):
    """What a session of this process gets that says to have `shards` and shows `shown`."""
    rank = RawRank(daemon, shards=shards)
    with contextlib.closing(rank), contextlib.closing(rank.descriptors()) as connection:
        reply = connection.exchange(rank.token, shown, kind=BORROW)
        assert reply.ok, reply.message
        for descriptor in reply.descriptors:
            attributes = os.fstat(descriptor)
            os.close(descriptor)
            yield (attributes.st_dev, attributes.st_ino)
        assert len(reply.lent) == len(reply.descriptors)


def test_only_whoever_shows_the_file_gets_its_descriptor(daemon, lender, forgetful, data_dir):
    first, second, third = (
        forgetful.mount / path.name for path in checkpoints.shard_paths(data_dir)
    )
    with named(first) as shown:
        attributes = os.fstat(shown)
        mine = [(attributes.st_dev, attributes.st_ino)]
        assert list(borrow(daemon, [shown], [first])) == mine
        # The name that the session gave it says nothing.
        assert list(borrow(daemon, [shown], [second])) == mine
    with named(data_dir / first.name) as of_another_mount:
        assert not list(borrow(daemon, [of_another_mount], [first]))
    with named(forgetful.mount) as directory:
        assert not list(borrow(daemon, [directory], [first]))
    with open(third, "rb") as opened:
        assert not list(borrow(daemon, [opened.fileno()], [third]))


def test_storage_that_does_not_answer_keeps_no_borrower_and_nobody_else_waiting(
    daemon, lender, forgetful, data_dir
):
    """The file would be lent if anybody could find out in time which one it is."""
    path = forgetful.mount / checkpoints.shard_paths(data_dir)[0].name
    elsewhere = checkpoints.shard_paths(data_dir)[0]
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(named(path))
        borrowing = stack.enter_context(contextlib.closing(RawRank(daemon, shards=[path])))
        other = stack.enter_context(contextlib.closing(RawRank(daemon, shards=[elsewhere])))
        waiting = stack.enter_context(contextlib.closing(borrowing.descriptors()))
        connection = stack.enter_context(contextlib.closing(other.descriptors()))
        # More than a rank is kept waiting.
        forgetful.set("attribute_latency_ms", 6000)
        waiting.send(borrowing.token, [shown], kind=BORROW)
        with open(elsewhere, "rb") as file:
            assert connection.exchange(other.token, [file.fileno()]).accepted_count == 1
        other.wait_for("decision")
        readable, _, _ = select.select([waiting.socket], [], [], 0)
        assert not readable, "its storage has answered already"
        reply = waiting.receive()
        assert reply.ok and reply.lent == []
        forgetful.set("attribute_latency_ms", 0)


def test_a_descriptor_is_lent_read_only(daemon, lender, forgetful, data_dir):
    path = forgetful.mount / checkpoints.shard_paths(data_dir)[0].name
    rank = RawRank(daemon, shards=[path])
    with (
        contextlib.closing(rank),
        contextlib.closing(rank.descriptors()) as connection,
        named(path) as shown,
    ):
        (lent,) = connection.exchange(rank.token, [shown], kind=BORROW).descriptors
        with pytest.raises(OSError):
            os.write(lent, b"x")
        with pytest.raises(OSError):
            os.open(f"/proc/self/fd/{lent}", os.O_RDWR)
        os.close(lent)


def test_another_user_gets_no_descriptor(
    start_daemon, forgetful, data_dir, start_rank, short_dir, build_dir, need_root
):
    """Where it may read the files it opens them itself; where it may not, they stay closed to it."""
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--socket-mode", "0666"])
    for directory in (daemon.directory, short_dir, data_dir, forgetful.mount.parent):
        os.chmod(directory, 0o755)
    shutil.copy(build_dir / "test" / "load_rank", short_dir)
    program = os.path.join(short_dir, "load_rank")

    def start(user, number):
        return start_rank(
            forgetful.mount,
            socket=daemon.socket,
            group=f"of {user}",
            rank=number,
            size=2,
            program=program,
            flags=["--hold"],
            wrapper=["setpriv", "--reuid", user, "--regid", user, "--clear-groups"],
        )

    def opens_of(user, number):
        before = forgetful.stats()["opens"]
        rank = start(user, number)
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("holding")
        return forgetful.stats()["opens"] - before

    shards = len(checkpoints.shard_paths(data_dir))
    assert [opens_of(0, 0), opens_of(0, 1)] == [1 + shards, 1], "the index, and each shard once"
    for path in checkpoints.shard_paths(data_dir):
        os.chmod(path, 0o600)
    assert start(NOBODY, 0).outcome()["code"] == "PERMISSION_DENIED"
    for path in checkpoints.shard_paths(data_dir):
        os.chmod(path, 0o644)
    assert [opens_of(NOBODY, 0), opens_of(NOBODY, 1)] == [1 + shards, 1]
