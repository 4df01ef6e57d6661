"""What storage has to give for a load, by its own account and not by the daemon's."""

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

pytestmark = pytest.mark.counts_reads

MIB = 24
# Bytes read over those that are needed.
READ_RATIO_MAX = 1.01
EXTENT_BYTES = 256 << 10
STAGED = "rank_striped_read_ahead"


@pytest.fixture(params=["ext4", "xfs"])
def device(mount_loop, request):
    """A disk as most are: 128 KiB of read-ahead, nothing of the checkpoint in memory."""
    return mount_loop(
        lambda path: checkpoints.make_model(path, shards=3, mib=MIB),
        mib=MIB + 8,
        file_system=request.param,
    )


def assert_read_once(device, before, needed):
    read = device.bytes_read() - before
    assert needed <= read <= needed * READ_RATIO_MAX, f"{read / needed:.4f} x {needed}"


@pytest.mark.parametrize("ranks, share", [(1, "all"), (4, "rows"), (8, "all"), (8, "rows")])
def test_a_device_gives_every_byte_once_however_many_ranks_load(
    ranks, share, device, cli, digests_path, check_digests
):
    before = device.bytes_read()
    cli.load(device.mount, ranks=ranks, share=share, digests=digests_path)
    assert_read_once(device, before, checkpoints.total_page_bytes(device.mount))
    check_digests(device.mount, ranks, share)


def test_a_device_gives_what_a_daemon_without_io_uring_needs_once(
    device, start_daemon, build_dir, digests_path, check_digests
):
    daemon = start_daemon(flags=["--reader", "threads"])
    before = device.bytes_read()
    Cli(build_dir, daemon.socket).load(device.mount, ranks=4, digests=digests_path)
    assert_read_once(device, before, checkpoints.total_page_bytes(device.mount))
    check_digests(device.mount, 4)


def test_a_device_gives_no_extent_that_nobody_demands(
    mount_loop, start_daemon, start_rank
):
    random = numpy.random.default_rng(3)
    tensors = {f"t{i:02}": checkpoints.random_array(random, "uint8", (1 << 20,)) for i in range(24)}
    device = mount_loop(
        lambda path: checkpoints.save(path / "model.safetensors", tensors), mib=MIB + 8
    )
    demand = list(tensors)[8:12]
    ranges = checkpoints.data_ranges(device.mount / "model.safetensors")
    extents = {
        extent
        for name in demand
        for extent in range(ranges[name][0] // EXTENT_BYTES, -(-ranges[name][1] // EXTENT_BYTES))
    }
    # The kernel reads the header with what it guesses to come.
    header_bytes = device.read_ahead_kb << 10
    daemon = start_daemon(flags=["--extent-size", EXTENT_BYTES])
    before = device.bytes_read()
    flags = [word for name in demand for word in ["--demand", name]]
    rank = start_rank(device.mount, socket=daemon.socket, flags=flags)
    assert rank.expect("opened")["decision"]["effective"] == STAGED
    assert set(rank.finish()["digests"]) == set(demand)
    read = device.bytes_read() - before
    assert read <= len(extents) * EXTENT_BYTES * READ_RATIO_MAX + header_bytes


def test_a_restarted_daemon_reads_nothing_again(
    device, start_daemon, build_dir, digests_path, check_digests
):
    first = start_daemon(flags=["--extent-size", "1MiB"])
    Cli(build_dir, first.socket).load(device.mount, ranks=2, digests=digests_path)
    first.stop()
    digests_path.unlink()
    with checkpoints.locked_in_memory(device.mount):
        second = start_daemon(flags=["--extent-size", "1MiB"])
        before = device.bytes_read()
        result = Cli(build_dir, second.socket).load(device.mount, ranks=2, digests=digests_path)
        assert device.bytes_read() == before
    assert result["node"]["bytes_read"] == 0
    check_digests(device.mount, 2)


@pytest.mark.parametrize("percent", [0, 40, 90])
def test_a_rank_that_joins_in_the_middle_costs_no_byte_more(
    percent, daemon, data_dir, start_rank, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=1, mib=16)
    (shard,) = checkpoints.shard_paths(data_dir)
    slowfs = mount_slowfs(data_dir)
    # At 0 %: all but the header, which the kernel reads with what it guesses to come.
    slowfs.hold(shard.name, max(shard.stat().st_size * percent // 100, 512 << 10))
    first = start_rank(slowfs.mount, socket=daemon.socket, rank=0, size=2)
    assert first.expect("opened")["decision"]["effective"] == STAGED
    slowfs.wait_until_held()
    second = start_rank(slowfs.mount, socket=daemon.socket, rank=1, size=2)
    assert second.expect("opened")["decision"]["effective"] == STAGED
    slowfs.release()
    finish_with_right_bytes([first, second], data_dir)
    size = shard.stat().st_size
    assert size <= slowfs.weight_bytes() <= size * READ_RATIO_MAX


def test_a_rank_that_joins_at_the_end_costs_no_byte_more(
    daemon, data_dir, start_rank, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=1, mib=16)
    slowfs = mount_slowfs(data_dir)
    first = start_rank(slowfs.mount, socket=daemon.socket, rank=0, size=2, flags=["--hold"])
    first.expect("opened")
    first.expect("holding")
    with checkpoints.locked_in_memory(slowfs.mount):
        before = slowfs.weight_bytes()
        second = start_rank(slowfs.mount, socket=daemon.socket, rank=1, size=2)
        assert second.expect("opened")["decision"]["effective"] == STAGED
        first.resume()
        finish_with_right_bytes([first, second], data_dir)
    size = checkpoints.total_bytes(data_dir)
    assert slowfs.weight_bytes() == before
    assert size <= before <= size * READ_RATIO_MAX


def finish_with_right_bytes(ranks, directory):
    expected = checkpoints.expected_digests(directory, len(ranks), "all")
    for rank in ranks:
        got = rank.digests(rank.finish())
        assert got == {key: value for key, value in expected.items() if key[0] == rank.rank}
