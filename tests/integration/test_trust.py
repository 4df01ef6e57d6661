"""Who is let in, and who trusts the daemon, loads through it, anybody else natively.

test_peers.py has more of those whom the daemon does not trust, test_false_daemons.py of those whom
ranks do not.
"""

import os
import pathlib
import pwd
import shutil

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, clean_environment, read_digests
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


@pytest.fixture
def daemon_of_nobody(build_dir, open_dir, need_root):
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
        yield daemon.wait_until_ready()
        daemon.stop()
    finally:
        daemon.abandon()


def naming_the_daemons_user(user):
    return {**clean_environment(), "FORESTAGE_DAEMON_USER": str(user)}


@pytest.mark.parametrize("how", ["number", "name", "flag"])
def test_a_daemon_of_another_user_serves_root_who_names_that_user(
    build_dir, daemon_of_nobody, data_dir, digests_path, check_digests, how
):
    """It holds descriptors that the rank opened and never needs rights of its own to the files."""
    checkpoints.make_model(data_dir, shards=2, mib=3)
    os.chmod(data_dir, 0o700)
    cli = Cli(build_dir, daemon_of_nobody.socket)
    name = pwd.getpwuid(NOBODY).pw_name
    options = {
        "number": {"env": naming_the_daemons_user(NOBODY)},
        "name": {"env": naming_the_daemons_user(name)},
        # Goes before the variable.
        "flag": {"env": naming_the_daemons_user(1), "flags": ["--daemon-user", NOBODY]},
    }[how]
    result = cli.load(data_dir, ranks=2, digests=digests_path, **options)
    check_digests(data_dir, 2)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
    named = ["--daemon-user", NOBODY]
    staged = cli.json("stage", data_dir, "--once", *named)
    assert staged["resident_bytes"] == staged["bytes"]
    assert cli.json("health", *named) == {"status": "SERVING"}
    assert cli.json("status", *named)["pid"] == daemon_of_nobody.pid
    assert cli.json("doctor", data_dir, *named)["daemon"]["running"] is True


@pytest.mark.parametrize("named", ["", "1", "no-such-user"])
def test_a_daemon_of_another_user_gets_nothing_of_root_who_does_not_name_that_user(
    build_dir, daemon_of_nobody, data_dir, digests_path, check_digests, named
):
    checkpoints.make_model(data_dir, shards=2, mib=3)
    cli = Cli(build_dir, daemon_of_nobody.socket)
    env = naming_the_daemons_user(named)
    result = cli.load(data_dir, ranks=2, digests=digests_path, env=env)
    check_digests(data_dir, 2)
    listens = f"uid {NOBODY} ({pwd.getpwuid(NOBODY).pw_name}) listens there"
    for rank in result["ranks"]:
        assert rank["effective"] == "native" and rank["activated"] is False
        assert f"{daemon_of_nobody.socket}: {listens}" in rank["reason"]
        assert f"set FORESTAGE_DAEMON_USER={NOBODY}" in rank["reason"]
        assert (f"'{named}'" in rank["reason"]) == bool(named)
        assert ("not known here" in rank["reason"]) == (named == "no-such-user")
    for command in ["status", "health"]:
        assert listens in cli.run(command, code=1, env=env).stderr
    assert daemon_of_nobody.sessions() == []


def test_who_has_no_number_in_a_user_namespace_is_trusted_only_where_all_of_them_are(
    build_dir, daemon, data_dir, digests_path, check_digests, in_user_namespace
):
    """The node's root looks there as every stranger does, and as this process itself."""
    checkpoints.make_model(data_dir, shards=2, mib=3)
    cli = Cli(build_dir, daemon.socket)
    cli.wrapper = in_user_namespace
    result = cli.load(data_dir, ranks=2, digests=digests_path)
    check_digests(data_dir, 2)
    for rank in result["ranks"]:
        assert rank["effective"] == "native"
        assert f"{daemon.socket}: who listens there is shown as uid {NOBODY}" in rank["reason"]
        assert "user namespace" in rank["reason"]
        assert f"FORESTAGE_DAEMON_USER={NOBODY}" in rank["reason"]
    env = naming_the_daemons_user(NOBODY)
    result = cli.load(data_dir, ranks=2, digests=digests_path, env=env)
    check_digests(data_dir, 2)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
