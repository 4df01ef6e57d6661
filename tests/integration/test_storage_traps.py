"""What makes storage slow or read-ahead worthless without saying so, each met on purpose.

Each test first shows that its trap is really there: else it would prove nothing.
"""

import os
import pathlib
import sys

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import AS_STRANGER, run, wait_until

pytestmark = pytest.mark.counts_reads

SUPPORT = str(pathlib.Path(checkpoints.__file__).parent.parent)
STAGED = "rank_striped_read_ahead"
EXTENT_BYTES = 256 << 10
READERS = ["io_uring", "threads"]


def advise_all(path):
    """One WILLNEED over the whole file; a read of its first byte tells that it was carried out."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        os.pread(descriptor, 1, 0)
    finally:
        os.close(descriptor)


def assert_staged(staged, directory):
    assert staged["resident_bytes"] == staged["bytes"]
    for path in checkpoints.shard_paths(directory):
        # The kernel may have reclaimed a few pages since.
        assert checkpoints.resident_bytes(path) >= path.stat().st_size * 63 // 64


@pytest.mark.parametrize("reader", READERS)
def test_advice_that_a_device_cuts_is_given_in_pieces_it_takes(
    reader, mount_loop, start_daemon, build_dir
):
    device = mount_loop(lambda path: checkpoints.make_model(path, shards=1, mib=20), mib=24)
    (shard,) = checkpoints.shard_paths(device.mount)
    advise_all(shard)
    wait_until(lambda: checkpoints.resident_bytes(shard) > 0, "the advice to bring something")
    assert checkpoints.resident_bytes(shard) < shard.stat().st_size // 2
    checkpoints.make_cold(device.mount)
    daemon = start_daemon(flags=["--reader", reader, "--extent-size", "8MiB"])
    before = device.bytes_read()
    staged = Cli(build_dir, daemon.socket).json("stage", device.mount, "--once")
    assert_staged(staged, device.mount)
    assert device.bytes_read() - before <= checkpoints.total_page_bytes(device.mount) * 1.01


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("read_ahead_kb, taken_kb", [(0, 128), (128, 128), (1024, 1024)])
def test_advice_that_a_mount_cuts_is_given_in_pieces_it_takes(
    reader, read_ahead_kb, taken_kb, start_daemon, build_dir, data_dir, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=1, mib=20)
    slowfs = mount_slowfs(data_dir, flags=["--read-ahead-kb", read_ahead_kb])
    (shard,) = checkpoints.shard_paths(slowfs.mount)
    advise_all(shard)
    assert 0 < slowfs.weight_bytes() <= 2 * taken_kb << 10
    checkpoints.make_cold(slowfs.mount)
    slowfs.reset_stats()
    daemon = start_daemon(flags=["--reader", reader, "--extent-size", "8MiB"])
    staged = Cli(build_dir, daemon.socket).json("stage", slowfs.mount, "--once")
    assert_staged(staged, slowfs.mount)
    stats = slowfs.stats()["files"][shard.name]
    assert stats["bytes"] == shard.stat().st_size
    # As large as the mount takes: else the latency of a request is paid too often.
    assert stats["request_bytes_max"] >= taken_kb << 10
    assert stats["requests"] <= shard.stat().st_size / (taken_kb << 10) * 1.25 + 4


@pytest.mark.parametrize("reader", READERS)
def test_a_piece_keeps_its_place_in_flight_until_its_data_are_there(
    reader, start_daemon, build_dir, data_dir, digests_path, check_digests, mount_slowfs
):
    """Advice is done at once, data come later: who counts advice has everything in flight."""
    budget = 1 << 20
    checkpoints.make_model(data_dir, shards=2, mib=12)
    slowfs = mount_slowfs(data_dir, flags=["--latency-ms", "2"])
    daemon = start_daemon(
        flags=["--reader", reader, "--extent-size", EXTENT_BYTES, "--in-flight-max", budget]
    )
    slowfs.hold("*", 512 << 10)
    load = Cli(build_dir, daemon.socket).start_load(slowfs.mount, ranks=2, digests=digests_path)
    # Whole but for one extent: a file's last one is smaller, and leaves room that no other fits.
    wait_until(
        lambda: slowfs.stats()["in_flight_bytes_peak"] > budget - EXTENT_BYTES,
        "the budget to be used",
    )
    slowfs.release()
    load.finish()
    check_digests(data_dir, 2)
    assert slowfs.stats()["in_flight_bytes_peak"] <= budget


def mount_files_of_nobody(storage, data_dir, mount_slowfs, mount_loop):
    def fill(path):
        checkpoints.make_model(path, shards=2, mib=6)
        checkpoints.give_to_nobody(path)

    if storage == "loop":
        return mount_loop(fill, mib=12).mount
    fill(data_dir)
    return mount_slowfs(data_dir).mount


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("storage", ["slowfs", "loop"])
def test_residency_that_the_kernel_lies_about_is_not_believed(
    reader,
    storage,
    need_root,
    data_dir,
    mount_slowfs,
    mount_loop,
    start_daemon,
    build_dir,
    digests_path,
    check_digests,
):
    """To a stranger without capabilities mincore says "all there" of a file with nothing cached."""
    mount = mount_files_of_nobody(storage, data_dir, mount_slowfs, mount_loop)
    shards = checkpoints.shard_paths(mount)
    says = "from forestage_testing import checkpoints; import sys; "
    says += "print(checkpoints.resident_bytes(sys.argv[1]))"
    lie = run(
        [*AS_STRANGER, sys.executable, "-c", says, shards[0]],
        env={**os.environ, "PYTHONPATH": SUPPORT},
    )
    assert int(lie.stdout) >= shards[0].stat().st_size
    assert [checkpoints.resident_bytes(path) for path in shards] == [0, 0]

    flags = ["--reader", reader, "--extent-size", EXTENT_BYTES]
    daemon = start_daemon(wrapper=AS_STRANGER, flags=flags)
    cli = Cli(build_dir, daemon.socket)
    staged = cli.json("stage", mount, "--once")
    assert staged["bytes_read"] == staged["bytes"]
    assert_staged(staged, mount)
    cli.load(mount, ranks=2, digests=digests_path)
    check_digests(mount, 2)


def test_a_mount_that_drops_its_cache_at_each_open_is_opened_once_and_read_once(
    cli, data_dir, digests_path, check_digests, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=3, mib=6)
    slowfs = mount_slowfs(data_dir, flags=["--keep-cache", "off"])
    cli.load(slowfs.mount, ranks=1, digests=digests_path)
    stats = slowfs.stats()
    # One open of each shard and one of the index.
    assert stats["opens"] == 4
    assert slowfs.weight_bytes() == checkpoints.total_bytes(data_dir)
    check_digests(data_dir, 1)


def limit_memory(group, limit_bytes):
    name = "memory.limit_in_bytes" if group.version == 1 else "memory.max"
    (group.path / name).write_text(str(limit_bytes))


def reclaims(group):
    """How often the group came to its limit."""
    if group.version == 1:
        return int((group.path / "memory.failcnt").read_text())
    events = (group.path / "memory.events").read_text().splitlines()
    return int(dict(line.split() for line in events)["max"])


@pytest.mark.parametrize("reader", READERS)
def test_read_ahead_that_lack_of_memory_takes_away_again_is_made_good(
    reader, memory_cgroup, start_daemon, data_dir, mount_slowfs, start_rank
):
    """The memory goes after the checkpoint was admitted: pages are reclaimed as they come."""
    checkpoints.make_model(data_dir, shards=2, mib=72)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 1 << 20)
    group = memory_cgroup(1 << 30)
    flags = ["--reader", reader, "--in-flight-max", "16MiB", "--memory-headroom", "0%"]
    daemon = start_daemon(wrapper=group.wrapper, flags=flags)
    rank = start_rank(slowfs.mount, socket=daemon.socket)
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    slowfs.wait_until_held()
    limit_memory(group, 48 << 20)
    slowfs.release()
    assert rank.digests(rank.finish()) == checkpoints.expected_digests(data_dir, 1, "all")
    assert reclaims(group) > 0
    assert group.oom_kills == 0
    assert daemon.health() == "SERVING"


def test_what_was_found_of_a_mount_is_not_said_of_the_next_one(
    daemon, cli, data_dir, mount_slowfs
):
    """File systems without a device get the number that the one before them had."""
    checkpoints.make_model(data_dir, shards=1, mib=2)
    # Others of this machine may take the number.
    for _ in range(20):
        slowfs = mount_slowfs(data_dir)
        slowfs.set("direct_io", "on")
        number = os.stat(slowfs.mount).st_dev
        cli.run("stage", "--once", slowfs.mount)
        daemon.wait_for_no_sessions()
        assert [mount["way"] for mount in listed(daemon, number)] == ["reads"]
        # A directory that is still open would keep it mounted; the daemon closes files a bit later.
        wait_until(lambda: os.system(f"umount {slowfs.mount} 2>/dev/null") == 0, "the files' end")
        if kernel_has_mount_ids():
            assert listed(daemon, number) == []
        after = mount_slowfs(data_dir)
        if os.stat(after.mount).st_dev == number:
            break
    else:
        pytest.fail("no number was given again")
    cli.run("stage", "--once", after.mount)
    (mount,) = listed(daemon, number)
    assert mount["way"] != "reads" and not mount["weaknesses"].count("no_mappings"), mount


def listed(daemon, number):
    text = f"{os.major(number)}:{os.minor(number)}"
    return [mount for mount in daemon.status()["mounts"] if mount["device"] == text]


def kernel_has_mount_ids():
    release = os.uname().release.split(".")
    return (int(release[0]), int(release[1])) >= (6, 8)
