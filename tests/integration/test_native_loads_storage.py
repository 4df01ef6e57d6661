"""What ranks that load by themselves ask of storage."""

import pytest

from forestage_testing import checkpoints

# What the kernel reads ahead of a file of FUSE by itself.
READ_AHEAD_BYTES = 128 << 10


@pytest.mark.parametrize("ranks, share", [(1, "all"), (4, "rows")])
@pytest.mark.parametrize("own", [False, True])
def test_requests_are_large_whatever_the_mount_reads_ahead_and_nothing_is_read_twice(
    ranks, share, own, cli_without_daemon, data_dir, mount_slowfs, digests_path, check_digests
):
    checkpoints.make_model(data_dir, shards=2, mib=40)
    slowfs = mount_slowfs(data_dir, flags=["--keep-cache", "on"])
    slowfs.reset_stats()
    flags = ["--no-daemon", *(["--own"] if own else [])]
    cli_without_daemon.load(
        slowfs.mount, ranks=ranks, share=share, digests=digests_path, flags=flags
    )
    check_digests(data_dir, ranks, share)
    stats = slowfs.stats()
    assert stats["request_bytes_max"] > READ_AHEAD_BYTES
    assert stats["bytes"] <= checkpoints.total_page_bytes(data_dir) * 1.01
