"""What the daemon reads from storage, seen by its own account and by the storage."""

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

pytestmark = pytest.mark.counts_reads

# Headers are read before the lanes begin, with what the kernel reads ahead of them.
HEADER_READ_AHEAD_BYTES = 256 * 1024


def all_but_none(directory):
    """What a warm load may read: the kernel can reclaim a few pages at any time."""
    return checkpoints.total_bytes(directory) // 64


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_cold_checkpoint_is_read_once_for_all_ranks(ranks, cli, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=3, mib=12)
    checkpoints.make_cold(data_dir)
    node = cli.load(data_dir, ranks=ranks, digests=digests_path)["node"]
    pages = checkpoints.total_page_bytes(data_dir)
    assert pages - 3 * HEADER_READ_AHEAD_BYTES <= node["bytes_read"] <= pages
    assert node["bytes_needed"] <= pages


def test_a_warm_checkpoint_is_not_read(cli, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=3, mib=4)
    checkpoints.make_cold(data_dir)
    cli.load(data_dir, ranks=2, digests=digests_path)
    digests_path.unlink()
    node = cli.load(data_dir, ranks=2, digests=digests_path)["node"]
    assert node["bytes_read"] <= all_but_none(data_dir)


def test_a_staged_checkpoint_is_warm_for_anybody(cli, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=3, mib=4)
    checkpoints.make_cold(data_dir)
    staged = cli.json("stage", data_dir, "--once")
    size = checkpoints.total_bytes(data_dir)
    pages = checkpoints.total_page_bytes(data_dir)
    assert staged["bytes"] in (size, pages)
    assert staged["resident_bytes"] == staged["bytes"]
    assert 0 < staged["bytes_read"] <= pages
    for path in checkpoints.shard_paths(data_dir):
        assert checkpoints.resident_bytes(path) >= path.stat().st_size
    node = cli.load(data_dir, ranks=2, digests=digests_path)["node"]
    assert node["bytes_read"] <= all_but_none(data_dir)


def test_storage_sees_every_byte_once(cli, data_dir, digests_path, check_digests, mount_slowfs):
    checkpoints.make_model(data_dir, shards=3, mib=12)
    slowfs = mount_slowfs(data_dir, flags=["--latency-ms", "1"])
    node = cli.load(slowfs.mount, ranks=4, digests=digests_path)["node"]
    stats = slowfs.stats()
    sizes = {path.name: path.stat().st_size for path in checkpoints.shard_paths(data_dir)}
    read = {name: stats["files"][name]["bytes"] for name in sizes}
    assert read == sizes
    assert node["bytes_read"] <= checkpoints.total_page_bytes(data_dir)
    check_digests(data_dir, 4)


def test_extents_larger_than_what_a_mount_takes_at_once_are_read_whole(
    start_daemon, build_dir, data_dir, digests_path, mount_slowfs
):
    """A WILLNEED of 8 MiB fills 128 KiB on a mount that reads no more ahead; nobody says so."""
    checkpoints.make_model(data_dir, shards=1, mib=20)
    slowfs = mount_slowfs(data_dir, flags=["--read-ahead-kb", "128", "--latency-ms", "1"])
    daemon = start_daemon(flags=["--extent-size", "8MiB"])
    staged = Cli(build_dir, daemon.socket).json("stage", slowfs.mount, "--once")
    assert staged["resident_bytes"] == staged["bytes"]
    assert slowfs.weight_bytes() == checkpoints.total_bytes(data_dir)
    slowfs.reset_stats()
    Cli(build_dir, daemon.socket).load(slowfs.mount, ranks=2, digests=digests_path)
    assert slowfs.weight_bytes() <= all_but_none(data_dir)


def test_rows_of_ranks_are_read_once_together(cli, data_dir, digests_path, check_digests):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    checkpoints.make_cold(data_dir)
    node = cli.load(data_dir, ranks=4, share="rows", digests=digests_path)["node"]
    assert node["bytes_read"] <= checkpoints.total_page_bytes(data_dir)
    check_digests(data_dir, 4, "rows")
