"""A rank is killed while a child that it forked lives on: what it held is free at once."""

import os
import re
import signal

import pytest

from forestage_testing import checkpoints
from forestage_testing.processes import descriptor_count, process_handle, wait_until

STAGED = "rank_striped_read_ahead"
# After so many seconds without a word the daemon would close a connection anyway.
IDLE = 60


@pytest.fixture
def fork_rank():
    """Lets a rank with --forks fork; gives the child's handle. The children end with the test."""
    handles = []

    def fork(rank):
        rank.signal(signal.SIGUSR1)
        handles.append(process_handle(rank.expect("forked")["child"]))
        return handles[-1]

    yield fork
    for handle in handles:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def expect_seat_is_free(daemon, start_rank, directory):
    """Of the only rank of group g."""
    again = start_rank(directory, socket=daemon.socket)
    assert again.expect("opened")["decision"]["effective"] == STAGED
    assert again.digests(again.finish()) == checkpoints.expected_digests(directory, 1, "all")


def leased_bytes(daemon):
    return int(daemon.status()["memory"]["leased_bytes"])


def test_a_rank_killed_in_the_middle_of_its_load(
    daemon, data_dir, start_rank, mount_slowfs, fork_rank
):
    other = checkpoints.make_model(data_dir / "other", shards=2, mib=2)
    slowfs = mount_slowfs(checkpoints.make_model(data_dir / "slow", shards=2, mib=6))
    slowfs.hold("*", 2 << 20)
    # The first session makes threads that wait for the next one.
    expect_seat_is_free(daemon, start_rank, other)
    daemon.wait_for_no_sessions()
    descriptors = descriptor_count(daemon.pid)
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=["--forks"])
    rank.expect("opened")
    slowfs.wait_until_held()
    assert leased_bytes(daemon) > 0
    child = fork_rank(rank)
    rank.kill()
    daemon.wait_for_no_sessions()
    wait_until(lambda: leased_bytes(daemon) == 0, "the lease to end")
    slowfs.release()
    expect_seat_is_free(daemon, start_rank, slowfs.mount)
    wait_until(lambda: descriptor_count(daemon.pid) <= descriptors, "descriptors to go", IDLE / 2)
    # It was alive all the time.
    signal.pidfd_send_signal(child, 0)


def test_a_rank_killed_in_the_middle_of_its_open(
    daemon, data_dir, start_rank, mount_slowfs, fork_rank
):
    other = checkpoints.make_model(data_dir / "other", shards=2, mib=2)
    expect_seat_is_free(daemon, start_rank, other)
    daemon.wait_for_no_sessions()
    descriptors = descriptor_count(daemon.pid)
    slowfs = mount_slowfs(checkpoints.make_model(data_dir / "slow", shards=2, mib=2))
    slowfs.hold("*", pid=daemon.pid)
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=["--forks"])
    # The daemon has its descriptors and cannot read a header.
    slowfs.wait_until_held()
    child = fork_rank(rank)
    rank.kill()
    ended = re.compile(f"session ended .* pid={rank.pid} ")
    wait_until(lambda: ended.search(daemon.log), "its session to end")
    # Its seat is free while the storage still does not answer.
    again = start_rank(slowfs.mount, socket=daemon.socket)
    slowfs.release()
    assert again.expect("opened")["decision"]["effective"] == STAGED
    assert again.digests(again.finish()) == checkpoints.expected_digests(slowfs.mount, 1, "all")
    daemon.wait_for_no_sessions()
    wait_until(lambda: descriptor_count(daemon.pid) <= descriptors, "descriptors to go", IDLE / 2)
    signal.pidfd_send_signal(child, 0)


def test_a_child_that_exits_does_not_end_its_parents_session(
    daemon, data_dir, start_rank, fork_rank
):
    checkpoints.make_model(data_dir, shards=2, mib=2)
    rank = start_rank(data_dir, socket=daemon.socket, flags=["--forks", "--hold"])
    rank.expect("opened")
    rank.expect("holding")
    for _ in range(3):
        signal.pidfd_send_signal(fork_rank(rank), signal.SIGKILL)
    daemon.wait_for_sessions(1)
    rank.resume()
    done = rank.finish()
    assert done["decision"]["effective"] == STAGED
    assert rank.digests(done) == checkpoints.expected_digests(data_dir, 1, "all")


def test_descriptors_of_daemon_and_rank_close_at_exec(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=2)
    rank = start_rank(data_dir, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    for pid in [daemon.pid, rank.pid]:
        kept = []
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
                (flags,) = [int(line.split()[1], 8) for line in file if line.startswith("flags:")]
            if int(descriptor) > 2 and not flags & os.O_CLOEXEC:
                kept.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        assert not kept, f"a program that {pid} executes inherits {kept}"
    rank.resume()
    rank.finish()
