"""FUSE without keep_cache, where each open of a file drops all that the page cache has of it: the
ranks of one user share the first one's open files, so that storage is read once all the same.

docs/storage.md says what happens on such a mount, docs/security.md who may get whose descriptor.
"""

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

STAGED = "rank_striped_read_ahead"
# Headers are read before the lanes begin, with what the kernel reads ahead of them.
SLACK = 1.01


@pytest.fixture
def forgetful(mount_slowfs, data_dir):
    """A checkpoint on a mount that drops a file's pages at each open of it."""
    checkpoints.make_model(data_dir, shards=3, mib=12)
    return mount_slowfs(data_dir, flags=["--keep-cache", "off", "--latency-ms", "1"])


def assert_read_once(slowfs, data_dir, ranks, shards=3):
    assert slowfs.weight_bytes() <= SLACK * checkpoints.total_bytes(data_dir)
    assert slowfs.stats()["opens"] <= shards + ranks, "each rank opens the index only"


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_come_together_read_storage_once(
    ranks, cli, forgetful, data_dir, digests_path, check_digests
):
    result = cli.load(forgetful.mount, ranks=ranks, digests=digests_path)
    assert [rank["effective"] for rank in result["ranks"]] == [STAGED] * ranks
    check_digests(data_dir, ranks)
    assert_read_once(forgetful, data_dir, ranks)


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("keep_cache", ["off", "on"])
def test_ranks_that_come_one_after_another_read_storage_once(
    ranks, keep_cache, daemon, forgetful, data_dir, start_rank
):
    """Each comes when the one before has read some, the first ones are gone when the last one does."""
    forgetful.set("keep_cache", keep_cache)
    expected = checkpoints.expected_digests(data_dir, ranks, "all")
    waiting = []
    for number in range(ranks):
        rank = start_rank(
            forgetful.mount,
            socket=daemon.socket,
            rank=number,
            size=ranks,
            flags=["--pause-after", "2"],
        )
        assert rank.expect("opened")["decision"]["effective"] == STAGED
        rank.expect("paused")
        waiting.append(rank)
        if len(waiting) == 3:
            finish(waiting.pop(0), expected)
    for rank in waiting:
        finish(rank, expected)
    assert_read_once(forgetful, data_dir, ranks)


def finish(rank, expected):
    rank.resume()
    done = rank.finish()
    assert done["decision"]["effective"] == STAGED
    for name, digest in rank.digests(done).items():
        assert digest == expected[name], name
