"""Storage that fails: for the daemon only, for a while, or for good."""

import re

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import AS_STRANGER, GUARD_SECONDS

MIDDLE = 3 << 20
FAULT_BYTES = 64 << 10


@pytest.fixture
def checkpoint(data_dir):
    checkpoints.make_model(data_dir, shards=2, mib=10)
    return data_dir


@pytest.fixture
def shard(checkpoint):
    return checkpoints.shard_paths(checkpoint)[0].name


@pytest.mark.parametrize("kind", ["eio", "estale"])
def test_ranks_read_themselves_what_the_daemon_cannot(
    kind, metered_daemon, build_dir, checkpoint, shard, digests_path, check_digests, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, kind, pid=metered_daemon.pid)
    cli = Cli(build_dir, metered_daemon.socket)
    cli.load(slowfs.mount, ranks=2, digests=digests_path)
    check_digests(checkpoint, 2)
    assert slowfs.stats()["faults"] > 0
    assert metered_daemon.health() == "SERVING"
    assert metered_daemon.metric_sum("forestage_read_errors_total") > 0


def test_errors_of_the_daemons_reads_are_shown_with_file_and_offset(
    daemon, checkpoint, shard, start_rank, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, "eio", pid=daemon.pid)
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=["--hold"])
    rank.expect("opened")
    rank.expect("holding")
    (status,) = daemon.status()["checkpoints"]
    assert status["read_errors"]
    assert shard in status["read_errors"][0]
    assert re.search(r"\d+", status["read_errors"][0].replace(shard, ""))
    rank.resume()
    rank.finish()
    # The status goes with the session, the log stays.
    (line,) = [line for line in daemon.log.splitlines() if "read failed" in line]
    assert status["read_errors"][0] in line.replace("\\'", "'")
    assert str(slowfs.mount) in line


def test_stage_names_what_the_daemon_cannot_read(daemon, cli, checkpoint, shard, mount_slowfs):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, "eio", pid=daemon.pid)
    finished = cli.run("stage", slowfs.mount, "--once", code=1)
    assert shard in finished.stderr
    assert "EIO" in finished.stderr


# How the daemon brings in pages; as a stranger it cannot ask which are there. Extents are large, so
# that each is read in many pieces side by side.
READERS = {
    "io_uring": {"flags": ["--reader", "io_uring"]},
    "threads": {"flags": ["--reader", "threads"]},
    "io_uring-populate": {"flags": ["--reader", "io_uring"], "wrapper": AS_STRANGER},
    "threads-populate": {"flags": ["--reader", "threads"], "wrapper": AS_STRANGER},
}
FIRST_BAD_BYTE = 3_000_000
LAST_BAD_BYTE = 3_100_000


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["eio", "eof"])
def test_the_daemon_names_the_place_where_the_trouble_begins(
    kind, reader, start_daemon, build_dir, data_dir, mount_slowfs, need_root
):
    """The first page of a file that fails, or where the file ends, whichever piece fails first."""
    checkpoints.make_model(data_dir, shards=1, mib=20)
    (path,) = checkpoints.shard_paths(data_dir)
    checkpoints.give_to_nobody(data_dir)
    daemon = start_daemon(**READERS[reader])
    slowfs = mount_slowfs(data_dir)
    if kind == "eof":
        slowfs.set("direct_io", "on")
    slowfs.fault(path.name, FIRST_BAD_BYTE, LAST_BAD_BYTE if kind == "eio" else "end", kind)
    finished = Cli(build_dir, daemon.socket).run("stage", slowfs.mount, "--once", code=1)
    offsets = [int(offset) for offset in re.findall(r"at offset (\d+)", finished.stderr)]
    page = FIRST_BAD_BYTE // checkpoints.PAGE_BYTES * checkpoints.PAGE_BYTES
    assert offsets == [page if kind == "eio" else FIRST_BAD_BYTE], finished.stderr


def test_staging_again_names_again_what_cannot_be_read(
    daemon, cli, checkpoint, shard, mount_slowfs
):
    """The kernel keeps pages whose read failed: they look as if they were in memory."""
    slowfs = mount_slowfs(checkpoint)
    # Away from the pages that a glance looks at.
    begin = MIDDLE + 5 * FAULT_BYTES
    slowfs.fault(shard, begin, begin + FAULT_BYTES, "eio")
    for _ in range(3):
        finished = cli.run("stage", slowfs.mount, "--once", code=1)
        assert shard in finished.stderr
        assert "EIO" in finished.stderr
        daemon.wait_for_no_sessions()


def test_a_fault_that_heals_is_not_noticed_in_the_bytes(
    daemon, cli, checkpoint, shard, digests_path, check_digests, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, "eio", count=2)
    cli.load(slowfs.mount, ranks=2, digests=digests_path)
    check_digests(checkpoint, 2)
    assert slowfs.stats()["faults"] > 0


def test_a_permanent_error_fails_the_load_by_file_and_offset_and_the_daemon_lives(
    daemon, cli, checkpoint, shard, data_dir, digests_path, check_digests, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, "eio")
    running = cli.start_load(slowfs.mount, ranks=2, digests=digests_path)
    finished = running.finish(code=1)
    said = finished.stderr + finished.stdout
    assert shard in said
    assert any(
        MIDDLE - (2 << 20) <= int(number) <= MIDDLE + FAULT_BYTES
        for number in re.findall(r"\d+", said)
    ), f"no offset near {MIDDLE}: {said}"
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()
    # The same files on a mount that works.
    slowfs.clear_faults()
    digests_path.unlink(missing_ok=True)
    cli.load(slowfs.mount, ranks=2, digests=digests_path)
    check_digests(checkpoint, 2)


def test_a_permanent_error_fails_a_native_load_alike(
    cli, checkpoint, shard, digests_path, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    slowfs.fault(shard, MIDDLE, MIDDLE + FAULT_BYTES, "eio")
    running = cli.start_load(slowfs.mount, ranks=1, digests=digests_path, flags=["--no-daemon"])
    finished = running.finish(code=1)
    assert shard in finished.stderr + finished.stdout


def test_a_mount_that_drops_its_cache_at_each_open_still_gives_right_bytes(
    cli, checkpoint, digests_path, check_digests, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint, flags=["--keep-cache", "off"])
    cli.load(slowfs.mount, ranks=3, digests=digests_path)
    check_digests(checkpoint, 3)


def test_a_held_mount_does_not_hold_up_another(
    daemon, cli, checkpoint, tmp_path, digests_path, check_digests, mount_slowfs, data_dir
):
    other = data_dir / "other"
    checkpoints.make_model(other, seed=5, shards=2, mib=4)
    slowfs = mount_slowfs(checkpoint)
    slowfs.hold("*", MIDDLE)
    held = cli.start_load(slowfs.mount, ranks=2, digests=tmp_path / "held")
    slowfs.wait_until_held()
    cli.load(other, ranks=2, digests=digests_path)
    check_digests(other, 2)
    assert held.is_running()
    slowfs.release()
    held.finish()


@pytest.mark.parametrize("flags", [[], ["--copy"]], ids=["view", "copy"])
def test_a_file_cut_in_the_middle_of_a_load_is_an_error_and_no_signal(
    flags, daemon, checkpoint, start_rank
):
    path = checkpoints.shard_paths(checkpoint)[1]
    rank = start_rank(checkpoint, socket=daemon.socket, flags=["--pause-after", "1", *flags])
    rank.expect("opened")
    rank.expect("paused")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    rank.resume()
    error = rank.expect("error")
    assert path.name in error["message"]
    assert rank.process.wait(GUARD_SECONDS) == 1
    assert daemon.health() == "SERVING"
    daemon.wait_for_no_sessions()
