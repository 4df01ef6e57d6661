"""A rank is killed in the middle of a load: the others go on, and nothing of it is left."""

import os
import signal

from forestage_testing import checkpoints
from forestage_testing.cli import read_digests
from forestage_testing.processes import children_of, descriptor_count, wait_until

STAGED = "rank_striped_read_ahead"


def expected_of(rank, directory):
    digests = checkpoints.expected_digests(directory, rank.rank + 1, "all")
    return {key: value for key, value in digests.items() if key[0] == rank.rank}


def test_the_others_finish_and_the_killed_rank_can_come_again(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    flags = ["--pause-after", "4"]
    ranks = [
        start_rank(data_dir, socket=daemon.socket, rank=number, size=3, flags=flags)
        for number in range(3)
    ]
    for rank in ranks:
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("paused")
    assert len(daemon.sessions()) == 3
    ranks[1].kill()
    wait_until(lambda: len(daemon.sessions()) == 2, "the killed rank's session to go")
    again = start_rank(data_dir, socket=daemon.socket, rank=1, size=3)
    assert again.expect("opened")["decision"]["effective"] == STAGED
    assert again.digests(again.finish()) == expected_of(again, data_dir)
    for rank in [ranks[0], ranks[2]]:
        rank.resume()
        done = rank.finish()
        assert done["decision"]["effective"] == STAGED
        assert rank.digests(done) == expected_of(rank, data_dir)
    daemon.wait_for_no_sessions()


def test_a_rank_killed_while_storage_hangs_leaves_nothing(
    daemon, data_dir, start_rank, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    descriptors = descriptor_count(daemon.pid)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    ranks = [
        start_rank(slowfs.mount, socket=daemon.socket, rank=number, size=2) for number in range(2)
    ]
    for rank in ranks:
        rank.expect("opened")
    slowfs.wait_until_held()
    ranks[0].kill()
    wait_until(lambda: len(daemon.sessions()) == 1, "the killed rank's session to go")
    slowfs.release()
    done = ranks[1].finish()
    assert ranks[1].digests(done) == expected_of(ranks[1], data_dir)
    daemon.wait_for_no_sessions()
    wait_until(lambda: descriptor_count(daemon.pid) <= descriptors + 2, "descriptors to go")


def test_a_load_whose_rank_was_killed_says_so_and_the_others_are_right(
    daemon, cli, data_dir, digests_path, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    load = cli.start_load(slowfs.mount, ranks=3, digests=digests_path)
    daemon.wait_for_sessions(3)
    slowfs.wait_until_held()
    victim = next(session for session in daemon.sessions() if session["local_rank"] == 1)
    [worker] = children_of(load.pid)
    assert victim["pid"] in children_of(worker)
    os.kill(victim["pid"], signal.SIGKILL)
    wait_until(lambda: len(daemon.sessions()) == 2, "the killed rank's session to go")
    slowfs.release()
    finished = load.finish(code=1)
    assert "rank 1" in finished.stderr + finished.stdout, finished
    daemon.wait_for_no_sessions()
    got = read_digests(digests_path)
    expected = checkpoints.expected_digests(data_dir, 3, "all")
    for rank in [0, 2]:
        for (number, name), digest in expected.items():
            if number == rank:
                assert got.get((rank, name)) == digest


def test_all_ranks_killed_at_once_leave_an_idle_daemon(daemon, data_dir, start_rank, mount_slowfs):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    ranks = [
        start_rank(slowfs.mount, socket=daemon.socket, rank=number, size=4) for number in range(4)
    ]
    for rank in ranks:
        rank.expect("opened")
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)
    slowfs.release()
    daemon.wait_for_no_sessions()
    assert daemon.health() == "SERVING"
