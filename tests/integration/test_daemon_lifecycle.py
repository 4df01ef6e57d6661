"""How the daemon starts, refuses to start, and ends."""

import os
import signal
import stat

import numpy
import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, clean_environment
from forestage_testing.processes import (
    GUARD_SECONDS,
    anonymous_bytes,
    descriptor_count,
    run,
    thread_count,
    wait_until,
)

# The promise for one SIGTERM, and what a loaded machine may add.
STOP_SECONDS = 10
SLACK_SECONDS = 10


def test_a_live_daemon_keeps_its_socket(daemon, start_daemon, cli):
    second = start_daemon(wait=False, directory=daemon.directory)
    assert second.process.wait(GUARD_SECONDS) != 0
    assert daemon.socket in second.log
    assert cli.run("health").code == 0


def test_a_stale_socket_file_is_replaced(start_daemon):
    first = start_daemon()
    first.kill()
    assert os.path.exists(first.socket)
    second = start_daemon(directory=first.directory)
    assert second.health() == "SERVING"


def test_a_file_that_is_no_socket_is_not_replaced(short_dir, start_daemon):
    path = os.path.join(short_dir, "d.sock")
    with open(path, "w", encoding="ascii") as file:
        file.write("precious")
    daemon = start_daemon(wait=False, directory=short_dir)
    assert daemon.process.wait(GUARD_SECONDS) != 0
    assert path in daemon.log
    with open(path, encoding="ascii") as file:
        assert file.read() == "precious"


@pytest.mark.parametrize(
    "flags, setting",
    [
        (["--extent-size", "3MiB"], "extent-size"),
        (["--extent-size", "many"], "extent-size"),
        (["--reader", "fast"], "reader"),
        (["--sessions-max", "-1"], "sessions-max"),
        (["--agreement-timeout", "soon"], "agreement-timeout"),
        (["--colour", "blue"], "--colour"),
    ],
)
def test_a_wrong_value_ends_the_start_and_is_named(flags, setting, start_daemon):
    daemon = start_daemon(wait=False, flags=flags)
    assert daemon.process.wait(GUARD_SECONDS) not in (0, -signal.SIGABRT, -signal.SIGSEGV)
    assert setting in daemon.log
    assert not os.path.exists(daemon.socket)


def test_a_wrong_value_in_the_environment_is_named(start_daemon):
    daemon = start_daemon(wait=False, environment={"FORESTAGED_READER": "fast"})
    assert daemon.process.wait(GUARD_SECONDS) != 0
    assert "FORESTAGED_READER" in daemon.log


def test_nobody_else_may_connect_to_the_sockets(daemon):
    for name in os.listdir(daemon.directory):
        mode = os.stat(os.path.join(daemon.directory, name)).st_mode
        if stat.S_ISSOCK(mode):
            assert not mode & stat.S_IRWXO, f"{name}: {stat.filemode(mode)}"


def test_sigterm_ends_an_idle_daemon_cleanly(start_daemon):
    daemon = start_daemon()
    daemon.stop()


def test_sigint_ends_an_idle_daemon_cleanly(start_daemon):
    daemon = start_daemon()
    daemon.signal(signal.SIGINT)
    daemon.wait_for_clean_end()


def test_sigterm_ends_a_daemon_whose_storage_hangs(
    start_daemon, build_dir, data_dir, digests_path, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    daemon = start_daemon(flags=["--extent-size", "256KiB"])
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    load = Cli(build_dir, daemon.socket).start_load(slowfs.mount, ranks=2, digests=digests_path)
    slowfs.wait_until_held()
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(STOP_SECONDS + SLACK_SECONDS) == 0, daemon.log
    slowfs.release()
    load.finish()


def test_a_second_sigterm_ends_it_at_once(
    start_daemon, build_dir, data_dir, digests_path, mount_slowfs
):
    checkpoints.make_model(data_dir, shards=2, mib=6)
    daemon = start_daemon(flags=["--extent-size", "256KiB"])
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    load = Cli(build_dir, daemon.socket).start_load(slowfs.mount, ranks=2, digests=digests_path)
    slowfs.wait_until_held()
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.health() != "SERVING", "the daemon to stop serving")
    if daemon.is_running():
        daemon.signal(signal.SIGTERM)
    daemon.process.wait(GUARD_SECONDS)
    slowfs.release()
    load.finish()


def test_descriptors_and_threads_are_given_back(daemon, cli, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=3, mib=2)

    def load():
        cli.load(data_dir, ranks=2, digests=digests_path)
        digests_path.unlink()

    # gRPC keeps what its first calls have made and a few threads more or less; the daemon keeps the
    # pidfd of a connection until the connection's number is used again.
    for _ in range(3):
        load()
    daemon.wait_for_no_sessions()
    descriptors = descriptor_count(daemon.pid) + 6
    threads = thread_count(daemon.pid) + 4
    for _ in range(20):
        load()
    daemon.wait_for_no_sessions()
    wait_until(lambda: descriptor_count(daemon.pid) <= descriptors, f"{descriptors} descriptors")
    wait_until(lambda: thread_count(daemon.pid) <= threads, f"{threads} threads")


def test_memory_of_large_headers_is_given_back(daemon, cli, data_dir):
    tensors = {f"layer.{i}.{'x' * 40}": numpy.zeros(0, numpy.uint8) for i in range(200_000)}
    checkpoints.save(data_dir / "model.safetensors", tensors)

    def stage():
        cli.run("stage", data_dir, "--once", "--json")
        daemon.wait_for_no_sessions()

    header_bytes = os.path.getsize(data_dir / "model.safetensors")
    # Else the heaps of the threads that parse keep about twice the header.
    limit = anonymous_bytes(daemon.pid) + header_bytes // 2
    for _ in range(4):
        stage()
    wait_until(lambda: anonymous_bytes(daemon.pid) < limit, f"anonymous memory below {limit}")


def test_sessions_above_the_limit_load_natively(start_daemon, build_dir, data_dir, start_rank):
    checkpoints.make_model(data_dir, shards=1, mib=1)
    daemon = start_daemon(flags=["--sessions-max", "1"])
    first = start_rank(data_dir, socket=daemon.socket, group="a", flags=["--hold"])
    first.expect("opened")
    first.expect("holding")
    second = start_rank(data_dir, socket=daemon.socket, group="b")
    decision = second.expect("opened")["decision"]
    assert decision["effective"] == "native"
    assert decision["reason"]
    second.finish()
    first.resume()
    first.finish()


def test_more_shards_than_the_daemon_may_open_are_loaded_natively(
    start_daemon, build_dir, data_dir, digests_path, check_digests
):
    random = numpy.random.default_rng(1)
    tensors = {f"t{i}": checkpoints.random_array(random, "int8", (5, 3)) for i in range(300)}
    checkpoints.save_sharded(data_dir, tensors, 300)
    daemon = start_daemon(wrapper=["prlimit", "--nofile=160"])
    result = Cli(build_dir, daemon.socket).load(data_dir, ranks=2, digests=digests_path)
    check_digests(data_dir, 2)
    for rank in result["ranks"]:
        assert rank["effective"] == "native"
        assert rank["reason"]
    # It has given back what it had, and serves what it can.
    checkpoints.make_model(data_dir / "small", shards=2, mib=1)
    digests_path.unlink()
    result = Cli(build_dir, daemon.socket).load(data_dir / "small", ranks=1, digests=digests_path)
    assert result["ranks"][0]["effective"] == "rank_striped_read_ahead", result


def test_a_load_without_daemon_does_not_talk_to_one(daemon, cli, data_dir, digests_path):
    checkpoints.make_model(data_dir, shards=2, mib=1)
    before = daemon.log
    cli.load(data_dir, ranks=2, digests=digests_path, flags=["--no-daemon"])
    assert daemon.log == before


def test_the_socket_can_be_named_by_the_environment(daemon, cli, data_dir, tmp_path):
    checkpoints.make_model(data_dir, shards=1, mib=1)
    environment = {**clean_environment(), "FORESTAGE_SOCKET": daemon.socket}
    arguments = [cli.program, "load", data_dir, "--ranks", "1", "--json"]
    result = run([*arguments, "--digests", tmp_path / "digests"], env=environment).json
    assert result["ranks"][0]["effective"] == "rank_striped_read_ahead"


def test_version_and_help_need_no_daemon(build_dir, cli_without_daemon):
    assert cli_without_daemon.run("version").stdout.strip()
    for arguments in [["--help"], ["load", "--help"], ["ls", "--help"], ["status", "--help"]]:
        assert "--socket" in cli_without_daemon.run(*arguments).stdout


def test_commands_that_need_a_daemon_say_that_there_is_none(cli_without_daemon):
    for command in ["status", "health"]:
        finished = cli_without_daemon.run(command, code=None)
        assert finished.code not in (0, None)
        assert cli_without_daemon.socket in finished.stderr
