"""Slow, shared and odd storage, as people meet it, and what storage sees of our loads.

What is measured is requests and bytes, as slowfs and block devices count them, and never time.
"""

import errno
import mmap
import os
import pathlib
import random

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

pytestmark = pytest.mark.counts_reads

STAGED = "rank_striped_read_ahead"
EXTENT_BYTES = 256 << 10
MIB = 1 << 20
WAYS = {"daemon": [], "native": ["--policy", "native"]}


def touch_by_page_faults(path):
    """What a reader that only maps its files does: a request for each page, in no order."""
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as pages:
            pages.madvise(mmap.MADV_RANDOM)
            for offset in range(0, len(pages), mmap.PAGESIZE):
                pages[offset]


def weight_requests(slowfs):
    files = slowfs.stats()["files"].items()
    return sum(file["requests"] for name, file in files if name.endswith(".safetensors"))


@pytest.mark.parametrize("way", WAYS)
def test_page_faults_by_the_thousand_become_few_large_requests(
    way, start_daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=1, mib=24)
    slowfs = mount_slowfs(data_dir)
    (shard,) = checkpoints.shard_paths(slowfs.mount)
    touch_by_page_faults(shard)
    by_faults = weight_requests(slowfs)
    assert by_faults >= shard.stat().st_size // mmap.PAGESIZE // 2
    checkpoints.make_cold(slowfs.mount)
    slowfs.reset_stats()
    rank = start_rank(slowfs.mount, socket=start_daemon().socket, flags=WAYS[way])
    assert rank.digests(rank.outcome()) == checkpoints.expected_digests(data_dir, 1, "all")
    ours = weight_requests(slowfs)
    mean = slowfs.weight_bytes() / ours
    print(f"{by_faults} requests by page faults, {ours} ours, {mean / 1024:.0f} KiB each")
    assert ours * 10 < by_faults
    # What such a mount takes at once by default, but for the header and the end.
    assert mean >= 0.75 * (128 << 10)


@pytest.mark.parametrize("flags", [[], ["--no-daemon"]], ids=["daemon", "native"])
def test_ten_thousand_small_tensors_are_read_in_runs_and_not_one_by_one(
    flags, cli, data_dir, mount_slowfs, digests_path, check_digests
):
    content = random.Random(3).randbytes(10_000 * 4096)
    tensors = [
        (f"t{i:05}", "U8", (4096,), content[i * 4096 : (i + 1) * 4096]) for i in range(10_000)
    ]
    checkpoints.save_raw(data_dir / "model.safetensors", tensors)
    slowfs = mount_slowfs(data_dir)
    cli.load(slowfs.mount, ranks=1, digests=digests_path, flags=flags)
    check_digests(data_dir, 1)
    assert weight_requests(slowfs) <= 10_000 / 16
    assert slowfs.weight_bytes() == checkpoints.total_bytes(data_dir)


def test_a_rank_decides_in_which_order_files_are_read(
    start_daemon, data_dir, mount_slowfs, start_rank
):
    """So that ranks and nodes need not all ask the same file first."""
    checkpoints.make_model(data_dir, shards=4, mib=8)
    slowfs = mount_slowfs(data_dir)
    paths = checkpoints.shard_paths(data_dir)
    flags = ["--extent-size", EXTENT_BYTES, "--in-flight-max", EXTENT_BYTES]
    daemon = start_daemon(flags=flags)
    names = [list(checkpoints.data_ranges(path)) for path in reversed(paths)]
    demand = [word for shard in names for name in shard for word in ["--demand", name]]
    # What the rank wants last.
    slowfs.hold(paths[0].name, 64 << 10)
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=demand)
    slowfs.wait_until_held()

    def all_others_are_read():
        files = slowfs.stats()["files"]
        return all(files[path.name]["bytes"] >= path.stat().st_size for path in paths[1:])

    wait_until(all_others_are_read, "everything before it to be read")
    slowfs.release()
    assert rank.digests(rank.outcome()) == checkpoints.expected_digests(data_dir, 1, "all")


def test_a_demanded_range_is_read_before_all_that_was_asked_for_earlier(
    start_daemon, data_dir, mount_slowfs, start_rank
):
    """One rank wants everything, and its reads fill the budget and hang; another wants one tensor."""
    arrays = {
        f"t{i:02}": checkpoints.random_array(numpy.random.default_rng(i), "uint8", (MIB,))
        for i in range(24)
    }
    checkpoints.save(data_dir / "model.safetensors", arrays)
    wanted = "t23"
    begin = checkpoints.data_ranges(data_dir / "model.safetensors")[wanted][0]
    slowfs = mount_slowfs(data_dir)
    budget = 4 * EXTENT_BYTES
    flags = ["--extent-size", EXTENT_BYTES, "--in-flight-max", budget, "--lanes-max", 1]
    daemon = start_daemon(flags=flags)
    # All but the header and what the second rank wants.
    slowfs.hold("model.safetensors", MIB, begin - EXTENT_BYTES)
    everything = start_rank(slowfs.mount, socket=daemon.socket, flags=["--hold"])
    slowfs.wait_until_held()
    one = start_rank(slowfs.mount, socket=daemon.socket, group="one", flags=["--demand", wanted])
    expected = checkpoints.expected_digests(data_dir, 1, "all")
    assert one.digests(one.outcome()) == {(0, wanted): expected[0, wanted]}
    assert slowfs.stats()["held"] > 0
    slowfs.release()
    everything.expect("opened")
    everything.expect("holding")
    everything.resume()
    assert everything.digests(everything.finish()) == expected


@pytest.mark.parametrize("reader", ["io_uring", "threads"])
def test_of_a_checkpoint_that_is_half_in_memory_only_the_holes_are_read(
    reader, start_daemon, build_dir, data_dir, mount_slowfs, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=24)
    slowfs = mount_slowfs(data_dir)
    seed = 17
    random_blocks = random.Random(seed)
    block_bytes = 64 << 10
    warm = {}
    for path in checkpoints.shard_paths(slowfs.mount):
        blocks = range(0, path.stat().st_size, block_bytes)
        begins = random_blocks.sample(blocks, len(blocks) // 2)
        warm[path] = [(begin, begin + block_bytes) for begin in begins]
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for begin in begins:
                os.pread(file.fileno(), block_bytes, begin)
    daemon = start_daemon(flags=["--reader", reader, "--extent-size", EXTENT_BYTES])
    cli = Cli(build_dir, daemon.socket)
    whole = checkpoints.total_page_bytes(data_dir)
    # A machine that is short of memory may drop what was read a moment ago.
    with checkpoints.locked_in_memory(slowfs.mount, warm):
        resident = sum(map(checkpoints.resident_bytes, warm))
        assert 0.4 < resident / whole < 0.6, seed
        slowfs.reset_stats()
        staged = cli.json("stage", slowfs.mount, "--once")
    # What was there is reported, and storage was asked for the rest alone.
    assert staged["bytes_read"] <= whole - resident
    assert slowfs.weight_bytes() <= (whole - resident) * 1.01, seed
    with checkpoints.locked_in_memory(slowfs.mount):
        slowfs.reset_stats()
        cli.load(slowfs.mount, ranks=2, digests=digests_path)
        check_digests(data_dir, 2)
        assert slowfs.weight_bytes() == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_file_system_that_refuses_mappings_is_read_by_reads_and_it_is_said_once(
    way, daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=5, mib=5)
    slowfs = mount_slowfs(data_dir)
    slowfs.set("direct_io", "on")
    with open(checkpoints.shard_paths(slowfs.mount)[0], "rb") as file:
        with pytest.raises(OSError) as refused:
            mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        assert refused.value.errno == errno.ENODEV
    for _ in range(2):
        rank = start_rank(slowfs.mount, socket=daemon.socket, flags=WAYS[way])
        event = rank.outcome()
        assert event["event"] == "done", event
        assert rank.digests(event) == checkpoints.expected_digests(data_dir, 1, "all")
        reason = event["decision"]["reason"]
        assert reason.count("cannot be mapped") == 1 and "ENODEV" in reason, reason
    said = [line for line in daemon.log.splitlines() if "mapping=no" in line]
    assert len(said) == (1 if way == "daemon" else 0)


def fuse_connection(path):
    """The kernel's directory about a FUSE mount."""
    connections = pathlib.Path("/sys/fs/fuse/connections")
    if not any(connections.iterdir()):
        os.system(f"mount -t fusectl none {connections}")
    return connections / str(os.minor(os.stat(path).st_dev))


@pytest.mark.parametrize("way", WAYS)
def test_a_fuse_mount_that_takes_two_requests_at_a_time_is_loaded_and_never_hangs(
    way, daemon, data_dir, mount_slowfs, start_rank, need_root
):
    checkpoints.make_model(data_dir, shards=4, mib=16)
    slowfs = mount_slowfs(data_dir, flags=["--latency-ms", "1"])
    connection = fuse_connection(slowfs.mount)
    for limit in ["max_background", "congestion_threshold"]:
        (connection / limit).write_text("2")
    ranks = [
        start_rank(slowfs.mount, socket=daemon.socket, rank=rank, size=4, flags=WAYS[way])
        for rank in range(4)
    ]
    expected = checkpoints.expected_digests(data_dir, 4, "all")
    for rank in ranks:
        for key, digest in rank.digests(rank.outcome()).items():
            assert expected[key] == digest
    assert daemon.health() == "SERVING"


def major_faults(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[9])


def test_a_copy_reads_and_never_faults_on_cold_mapped_pages(
    daemon, data_dir, mount_slowfs, start_rank
):
    """Who copies to a device while holding locks must not wait there for storage."""
    checkpoints.make_model(data_dir, shards=2, mib=8)
    slowfs = mount_slowfs(data_dir)
    flags = ["--policy", "native", "--copy", "--pause-after", "0", "--hold"]
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=flags)
    rank.expect("opened")
    rank.expect("paused")
    before = major_faults(rank.pid)
    slowfs.reset_stats()
    rank.resume()
    rank.expect("holding")
    # A page of the program itself may have been missing.
    assert major_faults(rank.pid) - before <= 8
    assert slowfs.weight_bytes() > 7 * MIB
    rank.resume()
    assert rank.digests(rank.finish()) == checkpoints.expected_digests(data_dir, 1, "all")


def test_a_checkpoint_larger_than_memory_is_read_about_once_by_a_rank_that_copies(
    memory_cgroup, mount_loop, daemon, start_rank
):
    device = mount_loop(lambda path: checkpoints.make_model(path, shards=3, mib=192), mib=208)
    group = memory_cgroup(48 << 20)
    before = device.bytes_read()
    flags = ["--policy", "native", "--copy"]
    rank = start_rank(
        device.mount, socket=daemon.socket, flags=flags, wrapper=group.wrapper
    )
    event = rank.outcome()
    assert event["event"] == "done", event
    read = device.bytes_read() - before
    print(f"{read / checkpoints.total_bytes(device.mount):.3f} x")
    assert read <= checkpoints.total_page_bytes(device.mount) * 1.1
    assert group.oom_kills == 0
    assert rank.digests(event) == checkpoints.expected_digests(device.mount, 1, "all")


def test_what_is_in_memory_anyhow_is_not_read_by_anybody_else(
    start_daemon, build_dir, short_dir, digests_path, check_digests
):
    """tmpfs, where direct I/O fails: we ask for none, and for no second copy."""
    directory = pathlib.Path("/dev/shm") / pathlib.Path(short_dir).name
    try:
        checkpoints.make_model(directory, shards=2, mib=4)
        daemon = start_daemon()
        cli = Cli(build_dir, daemon.socket)
        staged = cli.json("stage", directory, "--once")
        assert staged["bytes_read"] == 0
        cli.load(directory, ranks=2, digests=digests_path)
        check_digests(directory, 2)
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
