"""Storage that does not answer: it holds up who needs it, as long as it hangs, and nobody else."""

import signal

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import GUARD_SECONDS, wait_until

EXTENT_BYTES = 256 << 10
IN_FLIGHT_BYTES = 1 << 20
# Behind what the kernel reads ahead with a header.
HELD_FROM = 1 << 20
STAGED = "rank_striped_read_ahead"
READERS = ["io_uring", "threads"]


@pytest.fixture(params=READERS)
def tight_daemon(request, start_daemon):
    """One whose budget in flight one hanging mount can take whole."""
    return start_daemon(
        flags=[
            *["--reader", request.param],
            *["--extent-size", EXTENT_BYTES],
            *["--in-flight-max", IN_FLIGHT_BYTES],
        ]
    )


@pytest.fixture
def hung(data_dir, mount_slowfs):
    """A checkpoint whose storage answers for its headers only."""
    checkpoints.make_model(data_dir / "hung", shards=2, mib=12)
    slowfs = mount_slowfs(data_dir / "hung")
    slowfs.hold("*", HELD_FROM)
    return slowfs


def wait_until_stuck(daemon, slowfs):
    """All that the daemon may have in flight hangs: it can do nothing more here."""
    device = checkpoints.device_text(slowfs.mount)

    def is_stuck():
        mounts = {mount["device"]: mount for mount in daemon.status()["mounts"]}
        in_flight = int(mounts[device]["in_flight_bytes"]) if device in mounts else 0
        # What is left, beside the short end of a file, is no place for an extent.
        return in_flight > IN_FLIGHT_BYTES - EXTENT_BYTES and slowfs.stats()["held"] > 0

    wait_until(is_stuck, "the budget to be used")


def finish_with_right_bytes(rank, directory):
    done = rank.finish()
    assert rank.digests(done) == checkpoints.expected_digests(directory, 1, "all")
    return done


def test_a_mount_that_hangs_holds_up_no_other_mount(
    tight_daemon, build_dir, hung, data_dir, start_rank, mount_slowfs, digests_path, check_digests
):
    waiting = start_rank(hung.mount, socket=tight_daemon.socket, group="hung")
    waiting.expect("opened")
    wait_until_stuck(tight_daemon, hung)
    for name in ["other", "local"]:
        checkpoints.make_model(data_dir / name, seed=5, shards=2, mib=6)
    other = mount_slowfs(data_dir / "other", flags=["--latency-ms", "1"])
    cli = Cli(build_dir, tight_daemon.socket)
    for mount, source in [(other.mount, data_dir / "other"), (data_dir / "local",) * 2]:
        checkpoints.make_cold(mount)
        digests_path.unlink(missing_ok=True)
        result = cli.load(mount, ranks=2, digests=digests_path)
        assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
        check_digests(source, 2)
    assert hung.stats()["held"] > 0
    assert waiting.process.poll() is None
    hung.release()
    done = finish_with_right_bytes(waiting, hung.source)
    assert done["decision"]["effective"] == STAGED


def test_a_session_on_storage_that_hangs_is_closed_at_once(
    tight_daemon, build_dir, hung, data_dir, start_rank, digests_path, check_digests
):
    leaving = start_rank(
        hung.mount, socket=tight_daemon.socket, flags=["--pause-after", "0", "--close"]
    )
    leaving.expect("opened")
    leaving.expect("paused")
    wait_until_stuck(tight_daemon, hung)
    leaving.resume()
    leaving.expect("closed")
    assert leaving.process.wait(GUARD_SECONDS) == 0
    tight_daemon.wait_for_no_sessions()
    assert hung.stats()["held"] > 0
    # Nothing of it is read any more, and the daemon serves others, and later these files too.
    checkpoints.make_model(data_dir / "other", seed=5, shards=2, mib=4)
    Cli(build_dir, tight_daemon.socket).load(data_dir / "other", ranks=2, digests=digests_path)
    check_digests(data_dir / "other", 2)
    hung.release()
    wait_until(lambda: hung.stats()["in_flight"] == 0, "the reads to end")
    assert hung.weight_bytes() <= 2 * HELD_FROM + 2 * IN_FLIGHT_BYTES
    again = start_rank(hung.mount, socket=tight_daemon.socket)
    assert again.expect("opened")["decision"]["effective"] == STAGED
    finish_with_right_bytes(again, hung.source)


def test_an_interrupted_load_of_storage_that_hangs_ends_at_once(
    tight_daemon, build_dir, hung, digests_path
):
    load = Cli(build_dir, tight_daemon.socket).start_load(
        hung.mount, ranks=2, digests=digests_path
    )
    tight_daemon.wait_for_sessions(2)
    wait_until_stuck(tight_daemon, hung)
    load.signal(signal.SIGINT)
    load.finish(code=None)
    tight_daemon.wait_for_no_sessions()
    assert hung.stats()["held"] > 0
    assert tight_daemon.health() == "SERVING"
    hung.release()


def test_a_rank_whose_headers_hang_is_told_native_within_its_time(
    tight_daemon, build_dir, data_dir, start_rank, mount_slowfs, digests_path, check_digests
):
    checkpoints.make_model(data_dir / "hung", shards=2, mib=4)
    slowfs = mount_slowfs(data_dir / "hung")
    for path in checkpoints.shard_paths(data_dir / "hung"):
        slowfs.hold(path.name, 0, pid=tight_daemon.pid)
    rank = start_rank(
        slowfs.mount, socket=tight_daemon.socket, group="late", flags=["--open-timeout", "1"]
    )
    slowfs.wait_until_held()
    # Other checkpoints are opened and read meanwhile.
    checkpoints.make_model(data_dir / "other", seed=5, shards=2, mib=2)
    Cli(build_dir, tight_daemon.socket).load(data_dir / "other", ranks=2, digests=digests_path)
    check_digests(data_dir / "other", 2)
    wait_until(lambda: 'group="late"' in tight_daemon.log, "the timeout")
    slowfs.release()
    decision = rank.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert "headers" in decision["reason"]
    finish_with_right_bytes(rank, data_dir / "hung")
    tight_daemon.wait_for_no_sessions()
