"""Without io_uring the daemon reads by threads, says so once, and delivers the same bytes."""

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

pytestmark = pytest.mark.counts_reads


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_refused_io_uring_falls_back_to_threads(
    error, start_daemon, build_dir, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    checkpoints.make_cold(data_dir)
    daemon = start_daemon(
        wrapper=[build_dir / "test" / "deny_io_uring", error], flags=["--extent-size", "256KiB"]
    )
    status = daemon.status()
    assert status["reader"] == "threads"
    assert "io_uring" in status["reader_reason"]
    cli = Cli(build_dir, daemon.socket)
    for _ in range(2):
        result = cli.load(data_dir, ranks=2, digests=digests_path)
        assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
    check_digests(data_dir, 2)
    lines = [line for line in daemon.log.splitlines() if "io_uring" in line]
    assert len(lines) == 1, daemon.log


def test_threads_by_choice_deliver_the_same_bytes(
    start_daemon, build_dir, data_dir, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    checkpoints.make_cold(data_dir)
    daemon = start_daemon(flags=["--reader", "threads", "--extent-size", "256KiB"])
    assert daemon.status()["reader"] == "threads"
    node = Cli(build_dir, daemon.socket).load(data_dir, ranks=3, digests=digests_path)["node"]
    assert 0 < node["bytes_read"] <= checkpoints.total_page_bytes(data_dir)
    check_digests(data_dir, 3)


def test_threads_read_a_slow_mount_whole_and_once(
    start_daemon, build_dir, data_dir, digests_path, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    daemon = start_daemon(flags=["--reader", "threads", "--extent-size", "1MiB"])
    slowfs = mount_slowfs(data_dir, flags=["--latency-ms", "1"])
    Cli(build_dir, daemon.socket).load(slowfs.mount, ranks=2, digests=digests_path)
    assert slowfs.weight_bytes() == checkpoints.total_bytes(data_dir)
