"""Where several nodes begin to read one store."""

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

pytestmark = pytest.mark.counts_reads

MIB = 1 << 20
# What comes first on every node.
FIRST_BYTES = 32 * MIB
NODES = ["node-1", "node-2"]


def files_read_first(order, node, start_daemon, build_dir, data_dir, mount_slowfs):
    """Which shards the first requests behind the checkpoint's beginning go to: none is answered."""
    slowfs = mount_slowfs(data_dir)
    paths = checkpoints.shard_paths(slowfs.mount)
    # Headers are read, and the first shard, which is the beginning.
    for path in paths[1:]:
        slowfs.hold(path.name, MIB)
    flags = ["--read-order", order, "--node-name", node, "--lanes-max", 1]
    daemon = start_daemon(flags=[*flags, "--extent-size", MIB, "--in-flight-max", 2 * MIB])
    staging = Cli(build_dir, daemon.socket).start("stage", slowfs.mount, "--once")
    slowfs.wait_until_held(2)
    files = slowfs.stats()["files"]
    first = {path.name for path in paths[1:] if files.get(path.name, {}).get("in_flight", 0) > 0}
    read_of_first = files[paths[0].name]["bytes"]
    slowfs.release()
    result = staging.finish()
    assert result.code == 0
    # All of it, and each byte once.
    assert slowfs.weight_bytes() <= checkpoints.total_page_bytes(data_dir) * 1.01
    assert read_of_first >= checkpoints.shard_paths(data_dir)[0].stat().st_size * 0.99
    return first


def test_nodes_begin_at_different_files_unless_they_are_told_not_to(
    start_daemon, build_dir, data_dir, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=8, mib=256)
    assert checkpoints.shard_paths(data_dir)[0].stat().st_size <= FIRST_BYTES * 1.1
    parts = [start_daemon, build_dir, data_dir, mount_slowfs]
    one, other = [files_read_first("node-offset", node, *parts) for node in NODES]
    assert one and other and not one & other
    again = files_read_first("auto", NODES[0], *parts)
    assert again == one
    one, other = [files_read_first("file", node, *parts) for node in NODES]
    assert one == other


@pytest.mark.parametrize("order", ["file", "node-offset"])
def test_a_ranks_first_tensor_comes_first_in_every_order(
    order, start_daemon, data_dir, mount_slowfs, start_rank
):
    """A rank that goes through the files gets its first tensors while all else is held."""
    checkpoints.make_model(data_dir, shards=4, mib=64)
    slowfs = mount_slowfs(data_dir)
    paths = checkpoints.shard_paths(slowfs.mount)
    for path in paths[1:]:
        slowfs.hold(path.name, MIB)
    flags = ["--read-order", order, "--node-name", NODES[0], "--extent-size", MIB]
    daemon = start_daemon(flags=flags)
    rank = start_rank(slowfs.mount, socket=daemon.socket, flags=["--pause-after", 1])
    rank.expect("opened")
    rank.expect("paused")
    slowfs.release()
    rank.resume()
    event = rank.finish()
    assert rank.digests(event) == checkpoints.expected_digests(data_dir, 1, "all")
    wait_until(lambda: slowfs.stats()["in_flight"] == 0, "all reads to end")
    assert slowfs.weight_bytes() <= checkpoints.total_page_bytes(data_dir) * 1.01
