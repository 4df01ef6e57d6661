"""The daemon dies, stops or hangs in the middle of a load: every rank goes on with right bytes."""

import os
import re
import signal

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

RANKS = 3
HELD_FROM = 2 << 20


class Load:
    """A load that waits for a held range of slow storage, with all ranks served by the daemon."""

    def __init__(self, daemon, build_dir, directory, digests_path, slowfs):
        self.slowfs = slowfs
        slowfs.hold("*", HELD_FROM)
        self.running = Cli(build_dir, daemon.socket).start_load(
            slowfs.mount, ranks=RANKS, digests=digests_path
        )
        daemon.wait_for_sessions(RANKS)
        slowfs.wait_until_held()
        assert {session["decision"]["effective"] for session in daemon.sessions()} == {
            "POLICY_RANK_STRIPED_READ_AHEAD"
        }
        assert self.running.is_running()

    def finish(self):
        self.slowfs.release()
        result = self.running.finish().json
        assert len(result["ranks"]) == RANKS
        return result["ranks"]


@pytest.fixture
def start_load(build_dir, data_dir, digests_path, mount_slowfs):
    def start(daemon):
        checkpoints.make_model(data_dir, shards=2, mib=10)
        return Load(daemon, build_dir, data_dir, digests_path, mount_slowfs(data_dir))

    return start


def test_kill_in_the_middle_of_a_load(daemon, start_load, data_dir, check_digests):
    load = start_load(daemon)
    daemon.kill()
    ranks = load.finish()
    check_digests(data_dir, RANKS)
    for rank in ranks:
        assert rank["effective"] == "native"
        assert rank["reason"]


def test_ranks_that_were_served_say_what_they_got_and_why_it_ended(
    daemon, data_dir, start_rank, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=10)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", HELD_FROM)
    ranks = [
        start_rank(slowfs.mount, socket=daemon.socket, rank=number, size=RANKS)
        for number in range(RANKS)
    ]
    for rank in ranks:
        assert rank.expect("opened")["decision"]["effective"] == "rank_striped_read_ahead"
    slowfs.wait_until_held()
    daemon.kill()
    slowfs.release()
    expected = checkpoints.expected_digests(data_dir, RANKS, "all")
    for rank in ranks:
        done = rank.finish()
        assert done["decision"]["requested"] == "auto"
        assert done["decision"]["effective"] == "native"
        assert done["decision"]["activated"] is True
        assert done["decision"]["reason"]
        got = rank.digests(done)
        assert got == {key: value for key, value in expected.items() if key[0] == rank.rank}


def test_sigterm_in_the_middle_of_a_load(daemon, start_load, data_dir, check_digests):
    load = start_load(daemon)
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: not os.path.exists(daemon.socket), "the daemon to close its socket")
    ranks = load.finish()
    check_digests(data_dir, RANKS)
    for rank in ranks:
        assert rank["effective"] == "native"
        assert re.search("drain|stops", rank["reason"]), rank["reason"]
    daemon.wait_for_clean_end()


def test_a_stopped_daemon_holds_nobody_up(daemon, start_load, data_dir, check_digests):
    load = start_load(daemon)
    daemon.signal(signal.SIGSTOP)
    try:
        ranks = load.finish()
    finally:
        daemon.signal(signal.SIGCONT)
    check_digests(data_dir, RANKS)
    for rank in ranks:
        assert rank["effective"] == "native"
        assert rank["reason"]
    daemon.wait_for_no_sessions()


def test_ranks_of_a_killed_daemon_use_the_next_one_at_their_next_load(
    start_daemon, build_dir, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    first = start_daemon()
    first.kill()
    second = start_daemon(directory=first.directory)
    result = Cli(build_dir, second.socket).load(data_dir, ranks=2, digests=digests_path)
    check_digests(data_dir, 2)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}


def test_a_slice_that_was_handed_out_survives_the_daemon(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    rank = start_rank(data_dir, socket=daemon.socket, flags=["--pause-after", "3"])
    assert rank.expect("opened")["decision"]["effective"] == "rank_striped_read_ahead"
    rank.expect("paused")
    daemon.kill()
    rank.resume()
    done = rank.finish()
    assert rank.digests(done) == checkpoints.expected_digests(data_dir, 1, "all")
