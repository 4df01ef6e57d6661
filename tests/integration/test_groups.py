"""Ranks that come together, late, twice, or not at all."""

import os
import signal

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import read_digests
from forestage_testing.processes import children_of, wait_until

STAGED = "rank_striped_read_ahead"


@pytest.fixture
def checkpoint(data_dir):
    directory = data_dir / "checkpoint"
    checkpoints.make_model(directory, shards=2, mib=6)
    return directory


@pytest.fixture
def check_rank():
    def check(rank, done, directory):
        expected = checkpoints.expected_digests(directory, rank.rank + 1, "all")
        expected = {key: value for key, value in expected.items() if key[0] == rank.rank}
        assert rank.digests(done) == expected

    return check


def test_two_groups_share_one_read_of_a_checkpoint(daemon, cli, checkpoint, tmp_path, mount_slowfs):
    slowfs = mount_slowfs(checkpoint)
    slowfs.hold("*", 3 << 20)
    outputs = [tmp_path / "one", tmp_path / "two"]
    loads = [cli.start_load(slowfs.mount, ranks=2, digests=output) for output in outputs]
    daemon.wait_for_sessions(4)
    assert (
        len(
            {
                session["group"]["name"] + session["group"]["launch_nonce"]
                for session in daemon.sessions()
            }
        )
        == 2
    )
    assert len(daemon.status()["checkpoints"]) == 1
    slowfs.release()
    for load in loads:
        assert {rank["effective"] for rank in load.finish().json["ranks"]} == {STAGED}
    expected = checkpoints.expected_digests(checkpoint, 2, "all")
    for output in outputs:
        assert read_digests(output) == expected
    assert slowfs.weight_bytes() == checkpoints.total_bytes(checkpoint)


def test_two_checkpoints_are_staged_side_by_side(daemon, cli, data_dir, tmp_path):
    loads = []
    for number in range(2):
        directory = data_dir / f"checkpoint{number}"
        checkpoints.make_model(directory, seed=number, shards=2, mib=3)
        checkpoints.make_cold(directory)
        output = tmp_path / f"digests{number}"
        loads.append((directory, output, cli.start_load(directory, ranks=2, digests=output)))
    for directory, output, load in loads:
        assert {rank["effective"] for rank in load.finish().json["ranks"]} == {STAGED}
        assert read_digests(output) == checkpoints.expected_digests(directory, 2, "all")
    daemon.wait_for_no_sessions()


def test_a_late_rank_is_welcome_and_nothing_is_read_again(
    daemon, checkpoint, start_rank, check_rank, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    early = start_rank(slowfs.mount, socket=daemon.socket, rank=0, size=2, flags=["--hold"])
    early.expect("opened")
    # Eager: it waits for nobody.
    assert early.expect("holding")["decision"]["effective"] == STAGED
    read = slowfs.weight_bytes()
    late = start_rank(slowfs.mount, socket=daemon.socket, rank=1, size=2)
    assert late.expect("opened")["decision"]["effective"] == STAGED
    check_rank(late, late.finish(), checkpoint)
    assert slowfs.weight_bytes() == read
    early.resume()
    check_rank(early, early.finish(), checkpoint)
    daemon.wait_for_no_sessions()


def test_a_strict_group_that_is_complete_is_served(daemon, checkpoint, start_rank, check_rank):
    first = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2, flags=["--strict"])
    # It is there, and has no decision yet.
    wait_until(lambda: len(daemon.sessions()) == 1, "the first session")
    assert all("decision" not in session for session in daemon.sessions())
    second = start_rank(checkpoint, socket=daemon.socket, rank=1, size=2, flags=["--strict"])
    for rank in [first, second]:
        decision = rank.expect("opened")["decision"]
        assert decision["effective"] == STAGED, decision
        check_rank(rank, rank.finish(), checkpoint)


def test_a_strict_group_without_a_rank_is_native_and_names_it(
    daemon, checkpoint, start_rank, check_rank
):
    flags = ["--strict", "--agreement-timeout", "1"]
    ranks = [
        start_rank(checkpoint, socket=daemon.socket, rank=number, size=3, flags=flags)
        for number in [0, 2]
    ]
    for rank in ranks:
        decision = rank.expect("opened")["decision"]
        assert decision["effective"] == "native"
        assert "1" in decision["reason"], decision["reason"]
        assert "rank" in decision["reason"], decision["reason"]
        check_rank(rank, rank.finish(), checkpoint)


# Nobody waits so long.
STRICT = ["--strict", "--agreement-timeout", "3600"]


def damage_header(path):
    """In place; returns what mends it."""
    content = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"[")

    def mend():
        with open(path, "r+b") as file:
            file.write(content)

    return mend


def test_a_strict_group_does_not_wait_for_a_rank_that_fails_at_its_open(
    daemon, checkpoint, start_rank
):
    first = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2, flags=STRICT)
    wait_until(lambda: daemon.status()["checkpoints"], "the first rank to be ready")
    (path, _) = checkpoints.shard_paths(checkpoint)
    damage_header(path)
    second = start_rank(checkpoint, socket=daemon.socket, rank=1, size=2, flags=STRICT)
    assert path.name in second.outcome()["message"]
    # It goes on natively, and finds by itself that the file is damaged.
    assert path.name in first.outcome()["message"]
    (line,) = [line for line in daemon.log.splitlines() if "info decision" in line]
    assert " rank=0 " in line and "effective=native" in line
    assert "strict agreement: rank 1 (pid " in line and path.name in line
    daemon.wait_for_no_sessions()


def test_a_strict_rank_is_told_of_one_that_failed_before_it_came(
    daemon, checkpoint, start_rank, check_rank
):
    (path, _) = checkpoints.shard_paths(checkpoint)
    mend = damage_header(path)
    early = start_rank(checkpoint, socket=daemon.socket, rank=1, size=2, flags=STRICT)
    assert path.name in early.outcome()["message"]
    mend()
    late = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2, flags=STRICT)
    decision = late.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert "rank 1" in decision["reason"] and path.name in decision["reason"], decision
    check_rank(late, late.finish(), checkpoint)


def test_a_strict_group_does_not_wait_for_a_rank_that_is_killed_at_its_open(
    daemon, checkpoint, start_rank, check_rank, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.hold(checkpoints.shard_paths(checkpoint)[0].name)
    killed = start_rank(slowfs.mount, socket=daemon.socket, rank=1, size=2, flags=STRICT)
    # The daemon reads its headers.
    slowfs.wait_until_held()
    killed.process.kill()
    wait_until(lambda: "session ended" in daemon.log, "the killed rank's session to go")
    slowfs.release()
    other = start_rank(slowfs.mount, socket=daemon.socket, rank=0, size=2, flags=STRICT)
    decision = other.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert "rank 1" in decision["reason"], decision
    check_rank(other, other.finish(), checkpoint)


def test_a_strict_load_ends_when_a_rank_never_came_to_the_daemon(
    daemon, cli, checkpoint, tmp_path, mount_slowfs
):
    """The daemon knows nothing of it, but whoever has started the ranks does."""
    slowfs = mount_slowfs(checkpoint)
    slowfs.hold(checkpoints.INDEX_NAME)
    load = cli.start_load(
        slowfs.mount, ranks=2, digests=tmp_path / "digests", flags=["--agreement", "strict"]
    )
    slowfs.wait_until_held()
    wait_until(lambda: processes_of_rank(load, 1), "the rank to begin")
    (victim,) = processes_of_rank(load, 1)
    os.kill(victim, signal.SIGKILL)
    slowfs.release()
    finished = load.finish(code=1)
    waiting, killed = finished.json["ranks"]
    assert "killed by signal 9" in killed["error"]
    assert "since rank 1 failed before its open" in waiting["error"], waiting
    assert "strict agreement" in finished.stderr
    daemon.wait_for_no_sessions()


def processes_of_rank(load, rank):
    """One, once it has begun."""
    found = []
    for worker in children_of(load.pid):
        for pid in children_of(worker):
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                if f"--rank={rank}" in file.read().split("\0"):
                    found.append(pid)
    return found


def test_a_rank_that_asks_for_native_gets_it_and_no_other_does(
    daemon, checkpoint, start_rank, check_rank
):
    native = start_rank(
        checkpoint, socket=daemon.socket, rank=0, size=2, group="a", flags=["--policy", "native"]
    )
    decision = native.expect("opened")["decision"]
    assert (decision["requested"], decision["effective"]) == ("native", "native")
    check_rank(native, native.finish(), checkpoint)
    other = start_rank(checkpoint, socket=daemon.socket, rank=1, size=2, group="b")
    assert other.expect("opened")["decision"]["effective"] == STAGED
    check_rank(other, other.finish(), checkpoint)


def test_a_rank_that_sees_other_files_under_the_same_path_is_native_and_right(
    daemon, checkpoint, data_dir, start_rank, check_rank
):
    first = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2, flags=["--hold"])
    first.expect("opened")
    first.expect("holding")
    before = data_dir / "before"
    checkpoint.rename(before)
    checkpoints.make_model(checkpoint, seed=99, shards=2, mib=6)
    second = start_rank(checkpoint, socket=daemon.socket, rank=1, size=2)
    decision = second.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert decision["reason"]
    check_rank(second, second.finish(), checkpoint)
    first.resume()
    check_rank(first, first.finish(), before)


def test_a_second_holder_of_a_rank_is_refused_and_loads_natively(
    daemon, checkpoint, start_rank, check_rank
):
    holder = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2, flags=["--hold"])
    holder.expect("opened")
    holder.expect("holding")
    twin = start_rank(checkpoint, socket=daemon.socket, rank=0, size=2)
    decision = twin.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert "rank 0" in decision["reason"], decision["reason"]
    check_rank(twin, twin.finish(), checkpoint)
    assert len(daemon.sessions()) == 1
    holder.resume()
    assert holder.finish()["decision"]["effective"] == STAGED


def test_copies_are_as_right_as_views(daemon, checkpoint, start_rank, check_rank):
    rank = start_rank(checkpoint, socket=daemon.socket, flags=["--copy"])
    rank.expect("opened")
    check_rank(rank, rank.finish(), checkpoint)
