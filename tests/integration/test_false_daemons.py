"""Who has put sockets in the place of the daemon's gets nothing of a rank, and its load ends right.

docs/security.md says what is promised.
"""

import contextlib
import json
import os
import pwd
import subprocess
import sys

import pytest

from forestage_testing import checkpoints, false_daemon
from forestage_testing.cli import Cli, clean_environment
from forestage_testing.processes import GUARD_SECONDS, read_line

NOBODY = 65534
STAGED = "rank_striped_read_ahead"
SUPPORT = os.path.dirname(os.path.dirname(false_daemon.__file__))
SOCKETS = {
    "both": ["d.sock", "d.sock.descriptors"],
    "ranks": ["d.sock"],
    "descriptors": ["d.sock.descriptors"],
}
NOTHING = {"calls": [], "opens": [], "descriptors": [], "read": []}


def listens(path):
    return f"{path}: uid {NOBODY} ({pwd.getpwuid(NOBODY).pw_name}) listens there"


@pytest.fixture
def open_dir(short_dir, need_root):
    """A directory in which every user may do as he likes, with others' files, too."""
    os.chmod(short_dir, 0o777)
    return short_dir


@pytest.fixture
def secret(data_dir):
    """A checkpoint that only root may read."""
    directory = checkpoints.make_model(data_dir / "secret", shards=2, mib=3)
    for path in checkpoints.shard_paths(directory):
        path.chmod(0o600)
    os.chmod(directory, 0o700)
    return directory


@contextlib.contextmanager
def false_sockets(directory, names):
    """While somebody else has these sockets of the directory; gives what he got, afterwards."""
    process = subprocess.Popen(
        [sys.executable, false_daemon.__file__, str(NOBODY), directory, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": SUPPORT},
        start_new_session=True,
    )
    got = {}
    try:
        assert read_line(process.stdout) == "ready\n"
        yield got
        process.stdin.close()
        got.update(json.loads(read_line(process.stdout)))
        assert process.wait(GUARD_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("replaced", SOCKETS)
def test_a_stranger_in_the_place_of_the_daemons_sockets_gets_nothing(
    build_dir, open_dir, start_daemon, secret, digests_path, check_digests, replaced
):
    """The daemon's own directory is in order; the one above it is everybody's."""
    directory = os.path.join(open_dir, "run")
    os.mkdir(directory, 0o755)
    daemon = start_daemon(directory=directory)
    cli = Cli(build_dir, daemon.socket)
    names = SOCKETS[replaced]
    with false_sockets(directory, names) as got:
        assert os.stat(directory).st_uid == NOBODY
        result = cli.load(secret, ranks=2, digests=digests_path)
        check_digests(secret, 2)
        staged = cli.run("stage", secret, "--once", code=1)
    assert got == NOTHING
    for rank in result["ranks"]:
        assert rank["effective"] == "native" and rank["activated"] is False
        assert listens(os.path.join(directory, names[0])) in rank["reason"]
        assert f"FORESTAGE_DAEMON_USER={NOBODY}" in rank["reason"]
    assert listens(os.path.join(directory, names[0])) in staged.stderr
    # When all is as it was, so are loads.
    result = cli.load(secret, ranks=2, digests=digests_path)
    assert {rank["effective"] for rank in result["ranks"]} == {STAGED}


def test_a_stranger_who_takes_the_free_name_of_a_daemon_gets_nothing(
    build_dir, open_dir, secret, digests_path, check_digests
):
    """As in /tmp, while no daemon runs."""
    os.chmod(open_dir, 0o1777)
    path = os.path.join(open_dir, "d.sock")
    cli = Cli(build_dir, path)
    with false_sockets(open_dir, [*SOCKETS["both"], "d.sock.admin"]) as got:
        result = cli.load(secret, ranks=2, digests=digests_path)
        check_digests(secret, 2)
        for rank in result["ranks"]:
            assert rank["effective"] == "native" and listens(path) in rank["reason"]
        # Not the exit code of a daemon that is not there.
        for command in [["health"], ["stage", secret, "--once"]]:
            assert listens(path) in cli.run(*command, code=1).stderr
        assert listens(path + ".admin") in cli.run("status", code=1).stderr
        doctor = cli.json("doctor", secret)
        assert doctor["daemon"]["running"] is None
        assert listens(path + ".admin") in doctor["daemon"]["reason"]
    assert got == NOTHING


def test_administrators_ask_nobody_who_has_taken_their_socket(build_dir, open_dir, start_daemon):
    directory = os.path.join(open_dir, "run")
    os.mkdir(directory, 0o755)
    daemon = start_daemon(directory=directory)
    cli = Cli(build_dir, daemon.socket)
    with false_sockets(directory, ["d.sock.admin"]) as got:
        assert listens(daemon.admin_socket) in cli.run("status", code=1).stderr
        assert cli.json("health") == {"status": "SERVING"}, "that one is the daemon's"
    assert got == NOTHING


@pytest.mark.parametrize("replaced", SOCKETS)
def test_the_same_stranger_gets_what_he_wants_of_who_was_told_to_trust_him(
    build_dir, open_dir, start_daemon, secret, digests_path, check_digests, replaced
):
    """So the tests above show who is refused, not that he could not have taken it. These loads end
    right as well.
    """
    directory = os.path.join(open_dir, "run")
    os.mkdir(directory, 0o755)
    daemon = start_daemon(directory=directory, flags=["--descriptor-timeout", "1s"])
    cli = Cli(build_dir, daemon.socket)
    env = {**clean_environment(), "FORESTAGE_DAEMON_USER": str(NOBODY)}
    names = SOCKETS[replaced]
    with false_sockets(directory, names) as got:
        result = cli.load(secret, ranks=1, digests=digests_path, env=env)
        check_digests(secret, 1)
        assert [rank["effective"] for rank in result["ranks"]] == ["native"]
    assert len(got["opens"]) == (1 if "d.sock" in names else 0)
    shards = list(map(str, checkpoints.shard_paths(secret)))
    # With a token that the daemon has not given the descriptor socket takes nothing.
    assert sorted(got["descriptors"]) == (shards if "d.sock.descriptors" in names else [])
    assert got["read"] == [64] * len(got["descriptors"]), "he reads files that he may not open"
