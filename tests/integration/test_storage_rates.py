"""A limit of bytes a second, for nodes that share a store.

Load on the machine makes everything slower and nothing faster: what takes time is asserted to take at
least so long, and all else by the order of events."""

import signal
import time

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

MIB = 1 << 20
EXTENT_BYTES = 256 << 10
# What may be read at once, after a time in which nothing was.
CREDIT_SECONDS = 0.1
STAGED = "rank_striped_read_ahead"
READERS = ["io_uring", "threads"]


def limited(limit, *flags):
    return ["--extent-size", EXTENT_BYTES, "--read-bytes-per-second-max", limit, *flags]


def mount_status(daemon, path):
    (mount,) = [
        mount
        for mount in daemon.status()["mounts"]
        if mount["device"] == checkpoints.device_text(path)
    ]
    return mount


def resident_and_wanted(daemon):
    (checkpoint,) = daemon.status()["checkpoints"]
    progress = checkpoint["progress"]
    return int(progress["resident_bytes"]), int(progress["wanted_bytes"])


@pytest.mark.parametrize("reader", READERS)
def test_ranks_load_no_faster_than_the_limit_and_nobody_reads_past_it(
    reader, start_daemon, build_dir, data_dir, mount_slowfs, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=3, mib=12)
    slowfs = mount_slowfs(data_dir)
    limit = 6 * MIB
    daemon = start_daemon(flags=limited("fuse=6MiB", "--reader", reader))
    slowfs.reset_stats()
    begun = time.monotonic()
    result = Cli(build_dir, daemon.socket).load(slowfs.mount, ranks=3, digests=digests_path)
    seconds = time.monotonic() - begun
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
    check_digests(data_dir, 3)
    whole = checkpoints.total_page_bytes(data_dir)
    # Headers, and what the kernel reads ahead with them, are read beside it.
    beside = 3 * MIB
    assert seconds >= (whole - beside - EXTENT_BYTES) / limit - CREDIT_SECONDS
    # A rank that lost patience would read for itself what the daemon reads as well.
    assert slowfs.weight_bytes() <= whole * 1.01


def test_what_is_read_of_a_store_is_limited_and_a_local_disk_is_not(
    start_daemon, build_dir, data_dir, mount_slowfs, digests_path, check_digests
):
    checkpoints.make_model(data_dir / "store", shards=1, mib=32)
    checkpoints.make_model(data_dir / "disk", seed=3, shards=2, mib=32)
    checkpoints.make_cold(data_dir / "disk")
    slowfs = mount_slowfs(data_dir / "store")
    daemon = start_daemon(
        flags=limited("fuse=512KiB,1TiB,ext4=none"), metrics_address="127.0.0.1:0"
    )
    cli = Cli(build_dir, daemon.socket)
    staging = cli.start("stage", slowfs.mount)
    wait_until(
        lambda: daemon.status()["mounts"] and mount_status(daemon, slowfs.mount)["held_back"],
        "the limit to hold something back",
    )
    assert int(mount_status(daemon, slowfs.mount)["read_bytes_per_second_max"]) == 512 << 10
    assert "held back to 512 KiB/s" in cli.run("status").stdout
    doctor = cli.run("doctor", slowfs.mount).stdout
    assert "it reads at most 512 KiB/s there (read-bytes-per-second-max)" in doctor
    device = checkpoints.device_text(slowfs.mount)
    metric = "forestage_mount_read_limit_bytes_per_second"
    assert daemon.metrics()[metric, (("mount", device),)] == 512 << 10

    cli.load(data_dir / "disk", ranks=2, digests=digests_path)
    check_digests(data_dir / "disk", 2)
    # All of the disk's bytes came while the store had given a part of as many.
    resident, wanted = resident_and_wanted(daemon)
    assert 0 < resident < wanted
    staging.signal(signal.SIGTERM)
    staging.finish(code=None)
    # What was to be read at the store's pace ends with who wanted it.
    daemon.wait_for_no_sessions()


def test_a_demanded_range_goes_before_read_ahead_under_the_limit(
    start_daemon, build_dir, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir / "bulk", shards=1, mib=32)
    checkpoints.make_model(data_dir / "other", seed=8, shards=1, mib=4)
    slowfs = mount_slowfs(data_dir)
    daemon = start_daemon(flags=limited("1MiB"))
    cli = Cli(build_dir, daemon.socket)
    staging = cli.start("stage", slowfs.mount / "bulk")
    wait_until(
        lambda: daemon.status()["mounts"] and mount_status(daemon, slowfs.mount)["held_back"],
        "the limit to hold something back",
    )
    # Of the same checkpoint, and of another one on the same mount.
    for directory in ["bulk", "other"]:
        (path,) = checkpoints.shard_paths(data_dir / directory)
        ranges = checkpoints.data_ranges(path)
        wanted = max(ranges, key=lambda name: ranges[name][0])
        flags = ["--demand", wanted]
        rank = start_rank(
            slowfs.mount / directory, socket=daemon.socket, group=directory, flags=flags
        )
        event = rank.outcome()
        expected = checkpoints.expected_digests(data_dir / directory, 1, "all")
        assert rank.digests(event) == {(0, wanted): expected[0, wanted]}
        assert event["decision"]["effective"] == STAGED
        daemon.wait_for_sessions(1)
        resident, all_wanted = resident_and_wanted(daemon)
        assert resident < all_wanted / 2
    staging.signal(signal.SIGTERM)
    staging.finish(code=None)
    daemon.wait_for_no_sessions()


def test_a_mount_that_hangs_uses_up_no_limit_of_others(
    start_daemon, build_dir, data_dir, mount_slowfs, start_rank, digests_path, check_digests
):
    checkpoints.make_model(data_dir / "hung", shards=1, mib=12)
    checkpoints.make_model(data_dir / "other", seed=5, shards=2, mib=6)
    hung = mount_slowfs(data_dir / "hung")
    hung.hold("*", MIB)
    other = mount_slowfs(data_dir / "other")
    daemon = start_daemon(flags=limited("4MiB"))
    waiting = start_rank(hung.mount, socket=daemon.socket, group="hung")
    assert waiting.expect("opened")["decision"]["effective"] == STAGED
    hung.wait_until_held()
    result = Cli(build_dir, daemon.socket).load(other.mount, ranks=2, digests=digests_path)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
    check_digests(data_dir / "other", 2)
    assert hung.stats()["held"] > 0
    hung.release()
    assert waiting.digests(waiting.finish()) == checkpoints.expected_digests(
        data_dir / "hung", 1, "all"
    )


def test_a_daemon_that_is_held_back_stops_at_once(
    start_daemon, build_dir, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=2, mib=32)
    slowfs = mount_slowfs(data_dir)
    daemon = start_daemon(flags=limited("256KiB"))
    rank = start_rank(slowfs.mount, socket=daemon.socket)
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    wait_until(lambda: mount_status(daemon, slowfs.mount)["held_back"], "the limit")
    daemon.stop()
    # Without a daemon there is no limit: the rank reads the rest as fast as it comes.
    event = rank.finish()
    assert event["decision"]["effective"] == "native"
    assert rank.digests(event) == checkpoints.expected_digests(data_dir, 1, "all")
