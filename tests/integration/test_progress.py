"""Rate and time left, as people, tools and Prometheus see them, while storage flows and stands."""

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli
from forestage_testing.processes import run, wait_until

RATE = "forestage_staging_bytes_per_second"
LEFT = "forestage_staging_left_seconds"


@pytest.fixture
def checkpoint(data_dir):
    return checkpoints.make_model(data_dir, shards=2, mib=10)


def progress_of(daemon):
    (checkpoint,) = daemon.status()["checkpoints"]
    return checkpoint["progress"]


def series(daemon, name):
    return [value for (sample, _), value in daemon.metrics().items() if sample == name]


def test_rate_and_time_left_while_storage_stands_and_afterwards(
    metered_daemon, build_dir, checkpoint, start_rank, mount_slowfs
):
    slowfs = mount_slowfs(checkpoint)
    last = checkpoints.shard_paths(checkpoint)[-1].name
    slowfs.hold(last, 1 << 20, "end", metered_daemon.pid)
    rank = start_rank(slowfs.mount, socket=metered_daemon.socket, flags=["--hold"])
    rank.expect("opened")
    slowfs.wait_until_held()
    wait_until(lambda: int(progress_of(metered_daemon)["resident_bytes"]) > 0, "the first extents")

    # Nothing more can come: what came before is forgotten after some seconds.
    wait_until(lambda: progress_of(metered_daemon)["bytes_per_second"] == 0, "a rate of 0")
    stalled = progress_of(metered_daemon)
    assert not stalled["complete"]
    assert "seconds_left" not in stalled
    assert series(metered_daemon, RATE) == [0]
    assert series(metered_daemon, LEFT) == []
    assert "nothing comes now" in Cli(build_dir, metered_daemon.socket).run("status").stdout

    slowfs.release()
    wait_until(lambda: progress_of(metered_daemon)["complete"], "the end of staging")
    complete = progress_of(metered_daemon)
    assert complete["bytes_per_second"] > 0
    assert complete["seconds_left"] == 0
    assert series(metered_daemon, LEFT) == [0]
    rank.expect("holding")
    rank.resume()
    rank.finish()


def test_stage_reports_the_daemons_own_time_within_its_own(cli, checkpoint):
    staged = cli.json("stage", "--once", checkpoint)
    assert 0 < staged["staging_seconds"] <= staged["seconds"]


@pytest.mark.parametrize("flags", [["--json"], []])
def test_stage_ends_when_it_cannot_write_its_report(daemon, cli, data_dir, flags):
    directory = checkpoints.make_model(data_dir / "checkpoint", mib=2)
    arguments = [cli.program, "stage", directory, "--socket", daemon.socket, *flags]
    finished = run(["sh", "-c", 'exec "$@" >/dev/full', "sh", *arguments], code=1)
    assert "standard output: No space left on device" in finished.stderr
    daemon.wait_for_no_sessions()
