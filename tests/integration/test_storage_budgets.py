"""How much the daemon asks of storage at one time: a budget for each mount and one for the node."""

import re

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import wait_until

EXTENT_BYTES = 256 << 10
BUDGET_BYTES = 1 << 20
# Behind what the kernel reads ahead with a header.
HELD_FROM = 1 << 20
STAGED = "rank_striped_read_ahead"
READERS = ["io_uring", "threads"]


@pytest.mark.parametrize("reader", READERS)
def test_all_checkpoints_of_a_mount_share_its_budget(
    reader, start_daemon, data_dir, start_rank, mount_slowfs
):
    names = ["a", "b", "c"]
    for seed, name in enumerate(names):
        checkpoints.make_model(data_dir / name, seed=seed, shards=1, mib=6)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", HELD_FROM)
    daemon = start_daemon(
        flags=[
            *["--reader", reader],
            *["--extent-size", EXTENT_BYTES],
            *["--in-flight-max", BUDGET_BYTES],
        ]
    )
    ranks = [start_rank(slowfs.mount / name, socket=daemon.socket, group=name) for name in names]
    for rank in ranks:
        assert rank.expect("opened")["decision"]["effective"] == STAGED
    wait_until(
        lambda: slowfs.stats()["in_flight_bytes_peak"] >= BUDGET_BYTES, "the budget to be used"
    )
    slowfs.release()
    for rank, name in zip(ranks, names):
        expected = checkpoints.expected_digests(data_dir / name, 1, "all")
        assert rank.digests(rank.finish()) == expected
    # Each may always have one read, however much the others have.
    beside = (len(names) - 1) * EXTENT_BYTES
    assert slowfs.stats()["in_flight_bytes_peak"] <= BUDGET_BYTES + beside


def test_a_mount_that_hangs_is_reported_and_gives_the_nodes_budget_back(
    start_daemon, build_dir, data_dir, start_rank, mount_slowfs, digests_path, check_digests
):
    """It has taken all that the node may have in flight."""
    checkpoints.make_model(data_dir / "hung", shards=1, mib=12)
    (shard,) = checkpoints.shard_paths(data_dir / "hung")
    hung = mount_slowfs(data_dir / "hung")
    hung.hold("*", HELD_FROM)
    daemon = start_daemon(
        flags=[
            *["--extent-size", EXTENT_BYTES],
            *["--in-flight-max", BUDGET_BYTES],
            *["--node-in-flight-max", BUDGET_BYTES],
        ],
        metrics_address="127.0.0.1:0",
    )
    waiting = start_rank(hung.mount, socket=daemon.socket, group="hung")
    assert waiting.expect("opened")["decision"]["effective"] == STAGED
    wait_until(
        lambda: hung.stats()["in_flight_bytes_peak"] >= BUDGET_BYTES, "the budget to be used"
    )
    checkpoints.make_model(data_dir / "other", seed=5, shards=2, mib=6)
    other = mount_slowfs(data_dir / "other")
    result = Cli(build_dir, daemon.socket).load(other.mount, ranks=2, digests=digests_path)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}
    check_digests(data_dir / "other", 2)
    assert hung.stats()["held"] > 0

    wait_until(lambda: "read stuck" in daemon.log, "the hang to be reported")
    reports = [line for line in daemon.log.splitlines() if "read stuck" in line]
    # Each read once, by name and place, and none of the mount that answers.
    assert len(reports) == len(set(reports)) <= BUDGET_BYTES // EXTENT_BYTES
    for line in reports:
        assert str(hung.mount) in line
        assert f'file="{shard.name}"' in line
        assert int(re.search(r" offset=(\d+)", line)[1]) >= HELD_FROM - EXTENT_BYTES
        assert float(re.search(r" seconds=(\d+)", line)[1]) > 0
    # Asked after the log: status and metrics know it from then on.
    stuck = {
        mount["device"]: int(mount["stuck_bytes"]) for mount in daemon.status()["mounts"]
    }
    assert 0 < stuck.pop(checkpoints.device_text(hung.mount)) <= BUDGET_BYTES
    assert set(stuck.values()) <= {0}
    assert "STUCK" in Cli(build_dir, daemon.socket).run("status").stdout
    assert daemon.metric_sum("forestage_mount_stuck_bytes") > 0
    hung.release()
    waiting.finish()
