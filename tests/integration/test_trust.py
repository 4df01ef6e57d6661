"""Who is let in loads through the daemon, anybody else natively; test_peers.py has the rest."""

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
        assert "socket-group" in rank["reason"]
    return result


def test_another_user_cannot_reach_the_socket_and_loads_natively(
    build_dir, daemon, open_dir, need_root
):
    os.chmod(daemon.directory, 0o755)
    load_as_nobody(build_dir, daemon.socket, open_dir)
    assert daemon.health() == "SERVING"


def test_a_user_who_is_no_administrator_is_told_so(build_dir, daemon, open_dir, need_root):
    """Exit code 1, not the 3 of a daemon that is not there; whatever the socket's mode."""
    os.chmod(daemon.directory, 0o755)
    cli = Cli(build_dir, daemon.socket)
    cli.program = shutil.copy(cli.program, open_dir)

    def status_as_nobody():
        return cli.run(
            "status", code=1, user=NOBODY, group=NOBODY, extra_groups=[], cwd=open_dir
        ).stderr

    assert "this socket is for administrators" in status_as_nobody()
    os.chmod(daemon.admin_socket, 0o777)
    assert "serves only root and its own user" in status_as_nobody()


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
