"""The daemon dies, stops or hangs in the middle of a load: every rank goes on with right bytes."""

import re
import signal

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

RANKS = 3
HELD_FROM = 2 << 20
STAGED = "rank_striped_read_ahead"


@pytest.fixture
def served_ranks(daemon, data_dir, start_rank, mount_slowfs):
    """Ranks that the daemon serves and that wait for a held range of slow storage."""
    checkpoints.make_model(data_dir, shards=2, mib=10)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", HELD_FROM)
    ranks = [
        start_rank(slowfs.mount, socket=daemon.socket, rank=number, size=RANKS)
        for number in range(RANKS)
    ]
    for rank in ranks:
        assert rank.expect("opened")["decision"]["effective"] == STAGED
    slowfs.wait_until_held()
    return ranks, slowfs


def finish_natively(served_ranks, data_dir, ends=("native",)):
    """Releases the storage; every byte is right. Returns the decisions at the end."""
    ranks, slowfs = served_ranks
    slowfs.release()
    expected = checkpoints.expected_digests(data_dir, RANKS, "all")
    decisions = []
    for rank in ranks:
        done = rank.finish()
        got = rank.digests(done)
        assert got == {key: value for key, value in expected.items() if key[0] == rank.rank}
        decision = done["decision"]
        assert decision["requested"] == "auto"
        assert decision["effective"] in ends
        assert decision["activated"] is True
        assert decision["reason"]
        decisions.append(decision)
    return decisions


def test_ranks_of_a_killed_daemon_finish_natively(daemon, served_ranks, data_dir):
    daemon.kill()
    finish_natively(served_ranks, data_dir)


def test_a_rank_whose_daemon_dies_before_the_decision_is_told_so(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, mib=2)
    rank = start_rank(data_dir, socket=daemon.socket, size=2, flags=["--strict"])
    wait_until(lambda: len(daemon.sessions()) == 1, "the session that waits for the other rank")
    daemon.kill()
    decision = rank.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert f"the daemon at {daemon.socket} did not serve" in decision["reason"]
    assert "it ended or was killed before its decision" in decision["reason"]
    expected = checkpoints.expected_digests(data_dir, 2, "all")
    assert rank.digests(rank.finish()) == {k: v for k, v in expected.items() if k[0] == 0}


def test_ranks_of_a_draining_daemon_finish_natively(daemon, served_ranks, data_dir):
    daemon.signal(signal.SIGTERM)
    # Before that a rank may still be served to its end.
    wait_until(lambda: daemon.log.count("outcome=draining") == RANKS, "the boards to be closed")
    for decision in finish_natively(served_ranks, data_dir):
        assert re.search("drain|stops", decision["reason"]), decision["reason"]
    daemon.wait_for_clean_end()


def test_ranks_of_a_stopped_daemon_finish_natively(daemon, served_ranks, data_dir):
    daemon.signal(signal.SIGSTOP)
    try:
        # What it had begun to read comes although it stands still, and ranks use what is in memory:
        # then they end before its heartbeat is missed.
        finish_natively(served_ranks, data_dir, ends=("native", STAGED))
    finally:
        daemon.signal(signal.SIGCONT)
    daemon.wait_for_no_sessions()


def test_a_rank_that_opens_while_the_daemon_is_stopped_loads_natively(
    daemon, cli, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=1, mib=1)
    daemon.signal(signal.SIGSTOP)
    try:
        result = cli.load(data_dir, ranks=1, digests=digests_path)
    finally:
        daemon.signal(signal.SIGCONT)
    check_digests(data_dir, 1)
    assert result["ranks"][0]["effective"] == "native"
    assert "timed out" in result["ranks"][0]["reason"]
    daemon.wait_for_no_sessions()


@pytest.mark.parametrize("share", ["all", "rows"])
def test_a_load_goes_on_when_the_daemon_is_killed(
    share, daemon, cli, data_dir, digests_path, check_digests, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=10)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", HELD_FROM)
    load = cli.start_load(slowfs.mount, ranks=RANKS, share=share, digests=digests_path)
    daemon.wait_for_sessions(RANKS)
    slowfs.wait_until_held()
    daemon.kill()
    slowfs.release()
    result = load.finish().json
    check_digests(data_dir, RANKS, share)
    assert len(result["ranks"]) == RANKS
    for rank in result["ranks"]:
        assert rank["effective"] == "native"
        assert rank["reason"]


def test_ranks_of_a_killed_daemon_use_the_next_one_at_their_next_load(
    start_daemon, build_dir, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    first = start_daemon()
    first.kill()
    second = start_daemon(directory=first.directory)
    result = Cli(build_dir, second.socket).load(data_dir, ranks=2, digests=digests_path)
    check_digests(data_dir, 2)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}


def test_a_slice_that_was_handed_out_survives_the_daemon(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    rank = start_rank(data_dir, socket=daemon.socket, flags=["--pause-after", "3"])
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    rank.expect("paused")
    daemon.kill()
    rank.resume()
    done = rank.finish()
    assert rank.digests(done) == checkpoints.expected_digests(data_dir, 1, "all")
