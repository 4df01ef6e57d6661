"""Peers that are strangers, broken or hostile: each is refused by name, and nobody else notices.

docs/security.md says what is promised.
"""

import os
import shutil

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, read_digests
from forestage_testing.processes import run

NOBODY = 65534
GROUP = 4242


@pytest.fixture
def open_dir(short_dir):
    """A directory that every user may use, whatever lies above the build."""
    os.chmod(short_dir, 0o777)
    return short_dir


@pytest.fixture
def daemon_with_group(start_daemon, need_root):
    daemon = start_daemon(flags=["--extent-size", "256KiB", "--socket-group", GROUP])
    os.chmod(daemon.directory, 0o755)
    return daemon


def load_as(build_dir, socket, open_dir, *, groups):
    """Loads as a user who is not the daemon's, with right bytes in any case; the ranks' JSON."""
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
        extra_groups=groups,
        cwd=open_dir,
    )
    assert read_digests(digests) == checkpoints.expected_digests(checkpoint, 2, "all")
    return result["ranks"]


def test_a_member_of_the_sockets_group_loads_through_the_daemon(
    build_dir, daemon_with_group, open_dir
):
    ranks = load_as(build_dir, daemon_with_group.socket, open_dir, groups=[GROUP])
    assert [rank["effective"] for rank in ranks] == ["rank_striped_read_ahead"] * 2


def test_without_the_group_there_is_no_connection(build_dir, daemon_with_group, open_dir):
    ranks = load_as(build_dir, daemon_with_group.socket, open_dir, groups=[])
    for rank in ranks:
        assert rank["effective"] == "native"
        assert "EACCES" in rank["reason"] and "socket-group" in rank["reason"]
    assert "connection refused" not in daemon_with_group.log, "the kernel refuses, not the daemon"


def test_a_member_of_the_group_is_no_administrator(build_dir, daemon_with_group, open_dir):
    cli = Cli(build_dir, daemon_with_group.socket)
    cli.program = shutil.copy(cli.program, open_dir)
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": [GROUP], "cwd": open_dir}
    cli.run("health", **who)
    finished = cli.run("status", code=1, **who)
    assert "administrators" in finished.stderr
    # Nor by the socket that lets it in.
    finished = cli.run("status", "--admin-socket", daemon_with_group.socket, code=1, **who)
    assert daemon_with_group.admin_socket in finished.stderr


def test_a_socket_group_that_does_not_exist_is_named_at_the_start(build_dir, short_dir):
    finished = run(
        [
            build_dir / "bin" / "forestaged",
            *("--socket", os.path.join(short_dir, "d.sock")),
            *("--metrics-address", "none", "--socket-group", "no-such-group"),
        ],
        code=None,
    )
    assert finished.code not in (0, None)
    assert "socket-group" in finished.stderr and "no-such-group" in finished.stderr
    assert not [name for name in os.listdir(short_dir) if name.endswith((".sock", ".admin"))]


def test_a_directory_that_everybody_may_write_is_refused_at_the_start(build_dir, open_dir):
    finished = run(
        [
            build_dir / "bin" / "forestaged",
            *("--socket", os.path.join(open_dir, "d.sock"), "--metrics-address", "none"),
        ],
        code=None,
    )
    assert finished.code not in (0, None)
    assert "everybody may write" in finished.stderr and open_dir in finished.stderr
