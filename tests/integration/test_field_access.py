"""What the system refuses reaches the rank as what it is: the right kind of error, by name."""

import errno
import os
import resource

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli

# Root that may not read what is forbidden to it.
WITHOUT_RIGHTS = "-fowner,-dac_override,-dac_read_search"
AS_ANYBODY = ["setpriv", f"--bounding-set={WITHOUT_RIGHTS}", f"--inh-caps={WITHOUT_RIGHTS}"]
WAYS = {"daemon": [], "native": ["--policy", "native"]}


def forbid_shard(directory):
    checkpoints.shard_paths(directory)[1].chmod(0)
    return checkpoints.shard_paths(directory)[1].name


def forbid_index(directory):
    (directory / checkpoints.INDEX_NAME).chmod(0)
    return checkpoints.INDEX_NAME


def forbid_directory(directory):
    directory.chmod(0)
    return directory.name


def forbid_files_of_directory(directory):
    directory.chmod(0o400)
    return directory.name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "forbid", [forbid_shard, forbid_index, forbid_directory, forbid_files_of_directory]
)
def test_a_file_that_exists_and_may_not_be_read_is_a_permission_error_and_never_missing(
    forbid, way, daemon, data_dir, start_rank, need_root
):
    directory = checkpoints.make_model(data_dir / "checkpoint", shards=3, mib=3)
    name = forbid(directory)
    rank = start_rank(directory, socket=daemon.socket, wrapper=AS_ANYBODY, flags=WAYS[way])
    event = rank.outcome()
    directory.chmod(0o700)
    assert event["event"] == "error"
    assert event["code"] == "PERMISSION_DENIED", event
    assert name in event["message"] and "EACCES" in event["message"]
    assert "No such file" not in event["message"]


def test_every_command_tells_a_forbidden_checkpoint_from_a_missing_one(
    cli, data_dir, digests_path, need_root
):
    directory = checkpoints.make_model(data_dir / "checkpoint", shards=2, mib=2)
    forbid_shard(directory)
    cli.program, program = AS_ANYBODY[0], cli.program
    for command in [
        ["ls", directory],
        ["stage", directory, "--once"],
        ["load", directory, "--ranks", 2, "--digests", digests_path],
        ["load", directory, "--ranks", 2, "--digests", digests_path, "--no-daemon"],
    ]:
        said = cli.run(*AS_ANYBODY[1:], program, *command, code=1)
        assert "EACCES" in said.stderr and "No such file" not in said.stderr, said


def test_a_daemon_with_fewer_rights_than_its_ranks_serves_what_they_opened(
    start_daemon, build_dir, data_dir, digests_path, check_digests, need_root
):
    """It never opens by path: what a rank may read, it reads for that rank."""
    directory = checkpoints.make_model(data_dir / "checkpoint", shards=2, mib=2)
    for path in checkpoints.shard_paths(directory):
        path.chmod(0)
    daemon = start_daemon(wrapper=AS_ANYBODY)
    result = Cli(build_dir, daemon.socket).load(directory, ranks=2, digests=digests_path)
    assert {rank["effective"] for rank in result["ranks"]} == {"rank_striped_read_ahead"}
    check_digests(directory, 2)


ERRORS = ["eio", "estale", "enomem", "eintr", "eagain"]


@pytest.mark.parametrize("flags", [[], ["--copy"]], ids=["view", "copy"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ERRORS)
def test_the_error_of_storage_reaches_the_rank_by_its_name(
    kind, way, flags, daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=2, mib=4)
    name = checkpoints.shard_paths(data_dir)[1].name
    slowfs = mount_slowfs(data_dir)
    slowfs.fault(name, 1 << 20, (1 << 20) + 4096, kind)
    flags = [*flags, *WAYS[way]]
    event = start_rank(slowfs.mount, socket=daemon.socket, flags=flags).outcome()
    assert event["event"] == "error"
    assert name in event["message"] and kind.upper() in event["message"], event
    number = getattr(errno, kind.upper())
    assert os.strerror(number) in event["message"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ERRORS)
def test_the_error_of_a_header_reaches_the_rank_by_its_name(
    kind, way, daemon, data_dir, mount_slowfs, start_rank
):
    checkpoints.make_model(data_dir, shards=3, mib=3)
    paths = checkpoints.shard_paths(data_dir)
    slowfs = mount_slowfs(data_dir)
    # Two fail and one is sound: both are named.
    for path in paths[:2]:
        slowfs.fault(path.name, 0, 4096, kind)
    event = start_rank(slowfs.mount, socket=daemon.socket, flags=WAYS[way]).outcome()
    assert event["event"] == "error"
    assert event["message"].count(kind.upper()) >= 2
    assert all((path.name in event["message"]) == (path in paths[:2]) for path in paths)


def test_too_few_descriptors_are_said_with_what_else_is_wrong(daemon, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=40, mib=40)
    damaged = checkpoints.shard_paths(data_dir)[0]
    os.truncate(damaged, 100)
    limit = 30
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > limit
    wrapper = ["prlimit", f"--nofile={limit}:{limit}"]
    event = start_rank(data_dir, socket=daemon.socket, wrapper=wrapper).outcome()
    assert event["event"] == "error"
    assert event["code"] == "RESOURCE_EXHAUSTED"
    assert "ulimit -Hn" in event["message"] and damaged.name in event["message"]
