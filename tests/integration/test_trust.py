"""Only the daemon's own user and root are served; anybody else loads natively."""

import os
import pathlib
import shutil

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, read_digests
from forestage_testing.daemon import Daemon

NOBODY = 65534


@pytest.fixture
def open_dir(short_dir):
    """A directory that every user may use, whatever lies above the build."""
    os.chmod(short_dir, 0o777)
    return short_dir


def load_as_nobody(build_dir, socket, open_dir):
    checkpoint = os.path.join(open_dir, "checkpoint")
    checkpoints.make_model(checkpoint, shards=2, mib=2)
    for path, _, names in os.walk(checkpoint):
        os.chmod(path, 0o755)
        for name in names:
            os.chmod(os.path.join(path, name), 0o644)
    cli = Cli(build_dir, socket)
    cli.program = shutil.copy(cli.program, open_dir)
    digests = os.path.join(open_dir, "digests")
    result = cli.load(
        checkpoint,
        ranks=2,
        digests=digests,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=open_dir,
    )
    assert read_digests(digests) == checkpoints.expected_digests(checkpoint, 2, "all")
    for rank in result["ranks"]:
        assert rank["effective"] == "native"
        assert rank["activated"] is False
        assert rank["reason"]
    return result


def test_another_user_cannot_reach_the_socket_and_loads_natively(
    build_dir, daemon, open_dir, need_root
):
    os.chmod(daemon.directory, 0o755)
    load_as_nobody(build_dir, daemon.socket, open_dir)
    assert daemon.health() == "SERVING"


def test_another_user_that_reaches_the_socket_is_refused_and_loads_natively(
    build_dir, daemon, open_dir, need_root
):
    os.chmod(daemon.directory, 0o755)
    for name in os.listdir(daemon.directory):
        os.chmod(os.path.join(daemon.directory, name), 0o777)
    result = load_as_nobody(build_dir, daemon.socket, open_dir)
    for rank in result["ranks"]:
        assert "serves only root and its own user" in rank["reason"]
    assert daemon.health() == "SERVING"
    assert daemon.sessions() == []


def test_a_refused_user_is_told_so_by_the_commands_that_need_a_daemon(
    build_dir, daemon, open_dir, need_root
):
    """Exit code 1, not the 3 of a daemon that is not there."""
    os.chmod(daemon.directory, 0o755)
    for name in os.listdir(daemon.directory):
        os.chmod(os.path.join(daemon.directory, name), 0o777)
    cli = Cli(build_dir, daemon.socket)
    cli.program = shutil.copy(cli.program, open_dir)
    for command in ("health", "status"):
        finished = cli.run(
            command, code=1, user=NOBODY, group=NOBODY, extra_groups=[], cwd=open_dir
        )
        assert "serves only root and its own user" in finished.stderr


def test_a_daemon_of_another_user_serves_root(
    build_dir, open_dir, data_dir, digests_path, check_digests, need_root
):
    """It holds descriptors that the rank opened and never needs rights of its own to the files."""
    checkpoints.make_model(data_dir, shards=2, mib=3)
    os.chmod(data_dir, 0o700)
    os.mkdir(os.path.join(open_dir, "bin"))
    shutil.copy(build_dir / "bin" / "forestaged", os.path.join(open_dir, "bin"))
    daemon_dir = os.path.join(open_dir, "d")
    os.mkdir(daemon_dir)
    os.chown(daemon_dir, NOBODY, NOBODY)
    daemon = Daemon(
        pathlib.Path(open_dir),
        daemon_dir,
        wrapper=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"],
    )
    try:
        daemon.wait_until_ready()
        result = Cli(build_dir, daemon.socket).load(data_dir, ranks=2, digests=digests_path)
        check_digests(data_dir, 2)
        assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
        daemon.stop()
    finally:
        daemon.abandon()
