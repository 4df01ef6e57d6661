"""What ends `forestage`: it goes when it is told to, also while its storage never answers."""

import os
import random
import signal
import subprocess
import time

import pytest

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, clean_environment
from forestage_testing.processes import GUARD_SECONDS, children_of, wait_until

# The command ends "within a second or two"; the rest is a machine that is busy.
END_SECONDS = 15
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM]
VERBS = {
    "ls": ["ls"],
    "doctor": ["doctor"],
    "stage": ["stage"],
    "stage --json": ["stage", "--json"],
    "load": ["load", "--ranks", "2"],
    "load --together": ["load", "--ranks", "2", "--together", "--verify"],
}


@pytest.fixture(autouse=True)
def hang_ups_count():
    """Whoever started the tests may have them ignored (nohup), and commands would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def hung(data_dir, mount_slowfs):
    """A checkpoint on storage that a test can have never answer."""
    checkpoints.make_model(data_dir / "hung", shards=2, mib=4)
    return mount_slowfs(data_dir / "hung", flags=["--attribute-timeout", "0"])


def hold(slowfs, what):
    if what == "read":
        slowfs.hold("*")
    else:
        slowfs.set(f"hold_{what}s", "on")


def is_stuck(pid):
    """Its main thread waits for an answer of a FUSE file system."""
    try:
        with open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
            return "request_wait_answer" in file.read()
    except FileNotFoundError:
        return False


def end(running, number):
    """Ends it by the signal; its output, however long its storage hangs."""
    begun = time.monotonic()
    running.signal(number)
    finished = running.finish(guard_seconds=END_SECONDS, code=None)
    assert time.monotonic() - begun < END_SECONDS
    return finished


@pytest.mark.parametrize("what", ["open", "stat", "read"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_ends_every_command_whose_storage_never_answers(daemon, cli, hung, verb, what):
    hold(hung, what)
    command, *flags = VERBS[verb]
    running = cli.start(command, hung.mount, *flags)
    hung.wait_until_held()
    finished = end(running, signal.SIGTERM)
    assert hung.stats()["held"] > 0, "its storage has answered"
    if command == "load":
        assert finished.code == 1, finished
    else:
        assert finished.code == -signal.SIGTERM, finished
    # A process that reads is let go by the kernel: then a command that only looks needs no words.
    if command in ["load", "stage"] or what != "read":
        assert "interrupted" in finished.stderr, finished
        assert f" of {hung.mount}" in finished.stderr or command == "load", finished
        assert "--json" not in flags or "interrupted" in finished.json["error"]
    daemon.wait_for_no_sessions()


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_each_of_the_signals_ends_it(daemon, cli, hung, number):
    hold(hung, "open")
    stage = cli.start("stage", hung.mount)
    hung.wait_until_held()
    assert end(stage, number).code == -number


def load_into_a_stuck_stat(daemon, cli, slowfs, ranks):
    """Ranks that have their sessions, and then wait for ever for their own reading of a file.

    One whose request has not reached the file system yet is let go of by the kernel when it is to end.
    """
    slowfs.hold("*", 1 << 20)
    load = cli.start("load", slowfs.mount, "--ranks", ranks, "--verify")
    daemon.wait_for_sessions(ranks)
    slowfs.wait_until_held()
    slowfs.set("hold_stats", "on")
    slowfs.release()
    pids = {session["local_rank"]: session["pid"] for session in daemon.sessions()}
    wait_until(lambda: all(is_stuck(pid) for pid in pids.values()), "the ranks to be stuck")
    return load, pids


def test_a_session_goes_although_its_process_cannot(daemon, cli, hung):
    load, pids = load_into_a_stuck_stat(daemon, cli, hung, 2)
    finished = end(load, signal.SIGINT)
    assert finished.code == 1
    for rank, pid in pids.items():
        named = f"rank {rank}: process {pid} waits for storage" in finished.stderr
        assert named == is_stuck(pid), finished
    daemon.wait_for_no_sessions()
    assert daemon.health() == "SERVING"


def test_a_rank_that_is_told_to_end_gives_up_its_session(daemon, cli, hung):
    load, pids = load_into_a_stuck_stat(daemon, cli, hung, 1)
    os.kill(pids[0], signal.SIGTERM)
    finished = load.finish(code=1)
    stays = f"process {pids[0]} waits for storage that does not answer"
    assert (stays if is_stuck(pids[0]) else "killed by signal 15") in finished.stderr, finished
    daemon.wait_for_no_sessions()


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_what_is_held_is_given_up_in_order(daemon, cli, data_dir, number):
    checkpoints.make_model(data_dir, mib=2)
    stage = cli.start("stage", data_dir)
    while not (line := stage.process.stdout.readline()).startswith("held until"):
        assert line
    assert end(stage, number).code == 0
    daemon.wait_for_no_sessions()


def test_a_daemon_that_stands_still_does_not_keep_it(daemon, cli, data_dir):
    checkpoints.make_model(data_dir, mib=2)
    stage = cli.start("stage", data_dir)
    while not (line := stage.process.stdout.readline()).startswith("held until"):
        assert line
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert end(stage, signal.SIGTERM).code in [0, -signal.SIGTERM]
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    daemon.wait_for_no_sessions()


def test_a_hang_up_that_is_ignored_ends_nothing(daemon, cli, data_dir):
    checkpoints.make_model(data_dir, mib=2)
    cli.wrapper = ["nohup"]
    stage = cli.start("stage", data_dir)
    while not (line := stage.process.stdout.readline()).startswith("held until"):
        assert line
    stage.signal(signal.SIGHUP)
    for child in children_of(stage.pid):
        os.kill(child, signal.SIGHUP)
    assert daemon.health() == "SERVING"
    assert stage.is_running() and daemon.sessions()
    assert end(stage, signal.SIGTERM).code == 0


def test_a_command_that_is_killed_leaves_no_session(daemon, cli, data_dir):
    checkpoints.make_model(data_dir, mib=2)
    stage = cli.start("stage", data_dir)
    daemon.wait_for_sessions(1)
    os.kill(stage.pid, signal.SIGKILL)
    stage.process.wait(GUARD_SECONDS)
    daemon.wait_for_no_sessions()


def test_doctor_ends_when_it_has_said_that_storage_does_not_answer(cli, hung):
    hold(hung, "open")
    finished = cli.run("doctor", hung.mount, "--json", code=1)
    assert "has not answered for 10s" in finished.json["error"]
    assert hung.stats()["held"] > 0


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["doctor"]], ids=" ".join)
def test_a_reader_that_goes_ends_it_by_sigpipe(build_dir, data_dir, arguments):
    checkpoints.make_model(data_dir, mib=2)
    reading, writing = os.pipe()
    os.close(reading)
    command = [build_dir / "bin" / "forestage", *arguments, data_dir, "--no-daemon"]
    run = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=GUARD_SECONDS
    )
    os.close(writing)
    assert run.returncode == -signal.SIGPIPE
    assert run.stderr == ""


def test_where_sigpipe_is_ignored_a_lost_line_is_an_error(build_dir, data_dir):
    checkpoints.make_model(data_dir, mib=2)
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [build_dir / "bin" / "forestage", "ls", data_dir],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=GUARD_SECONDS,
        restore_signals=False,
    )
    os.close(writing)
    assert run.returncode == 1
    assert "standard output: Broken pipe" in run.stderr


def test_who_waits_long_is_told_for_what(build_dir, short_dir, hung):
    cli = Cli(build_dir, f"{short_dir}/none.sock")
    hold(hung, "open")
    ls = cli.start("ls", hung.mount)
    load = cli.start("load", hung.mount, "--ranks", "2", "--no-daemon")
    for running in [ls, load]:
        line = ""
        while "has not come back" not in line:
            line = running.process.stderr.readline()
            assert line, "it ended"
        assert f"open of {hung.mount}" in line
        assert "look at the mount" in line
    hung.set("hold_opens", "off")
    assert ls.finish().code == 0
    assert load.finish().code == 0


def wait_for_stall_line(running, *expected):
    """The line that says what it waits for."""
    lines = []
    while line := running.process.stderr.readline():
        lines.append(line)
        if "has not come back" in line:
            assert all(word in line for word in expected), line
            return
    raise AssertionError(f"it ended: {lines}")


def test_who_waits_long_for_tensors_is_told_where(daemon, cli, hung):
    hung.hold("*", 1 << 20)
    waiting = {}
    for flags in [[], ["--verify"], ["--own"]]:
        of_daemon = cli.start("load", hung.mount, "--ranks", "2", *flags)
        alone = cli.start("load", hung.mount, "--ranks", "2", *flags, "--no-daemon")
        waiting[of_daemon] = f"the daemon's read of {hung.mount}/"
        waiting[alone] = f"read of {hung.mount}/"
    waiting[cli.start("stage", hung.mount, "--once")] = "the daemon's read of "
    for running, read in waiting.items():
        wait_for_stall_line(running, read, ".safetensors at offset ")
    text = cli.run("status").stdout
    assert "STUCK: read of " in text and " at offset " in text, text
    stuck = daemon.status()["checkpoints"][0]["progress"]["stuck_reads"]
    assert stuck and stuck[0]["file"].endswith(".safetensors")
    assert hung.stats()["held"] > 0
    hung.release()
    for running in waiting:
        assert running.finish().code == 0


def start_rank_with_deadline(build_dir, daemon, directory, group, seconds):
    return subprocess.Popen(
        [build_dir / "test" / "rank_for_test", directory, daemon.socket, group]
        + ["0", "1", "eager", "1000"],
        env={**clean_environment(), "FORESTAGE_TEST_VIEW_SECONDS": str(seconds)},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def test_a_view_with_a_deadline_ends_by_it_whoever_holds_the_page(
    daemon, build_dir, data_dir, mount_slowfs
):
    ranks = []
    for whose, pid in [("everybody", 0), ("daemon", daemon.pid)]:
        checkpoints.make_model(data_dir / whose, shards=2, mib=4)
        slowfs = mount_slowfs(data_dir / whose, flags=["--attribute-timeout", "0"])
        slowfs.hold("*", 1 << 20, pid=pid)
        # While the daemon is waited for, and when it was given up: then the rank's own read hangs.
        for seconds in [5, 33]:
            group = f"{whose}-{seconds}"
            rank = start_rank_with_deadline(build_dir, daemon, slowfs.mount, group, seconds)
            ranks.append((slowfs, rank))
    for slowfs, rank in ranks:
        lines = list(iter(rank.stdout.readline, ""))
        assert slowfs.stats()["held"] > 0
        assert lines[-1].startswith("late DEADLINE_EXCEEDED: "), lines
        assert f"{slowfs.mount}/" in lines[-1] and " at offset " in lines[-1], lines
    for slowfs, rank in ranks:
        slowfs.release()
        rank.wait(GUARD_SECONDS)


def test_doctor_names_a_header_that_hangs(cli, hung):
    hung.hold("*")
    finished = cli.run("doctor", hung.mount, "--no-daemon", code=1)
    assert f" of {hung.mount}/" in finished.stdout + finished.stderr, finished


SIGNAL_ROUNDS = 12


def test_a_signal_to_the_whole_group_is_an_interruption_whenever_it_comes(daemon, cli, data_dir):
    checkpoints.make_model(data_dir, shards=2, mib=64)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    for _ in range(SIGNAL_ROUNDS):
        number = choose.choice(ENDING)
        load = cli.start("load", data_dir, "--ranks", "3", "--verify")
        # Not before its program runs; until then nobody could say anything.
        wait_until(lambda load=load: blocks(load.pid, signal.SIGINT), "it to look at signals")
        time.sleep(choose.uniform(0, 0.25))
        os.killpg(load.pid, number)
        finished = load.finish(guard_seconds=END_SECONDS, code=None)
        assert "killed by signal" not in finished.stderr, (seed, finished)
        # It may have been done before.
        if finished.code != 0:
            assert finished.code == 1 and "interrupted" in finished.stderr, (seed, finished)
        daemon.wait_for_no_sessions()


def blocks(pid, number):
    """Whether its main thread leaves the signal pending."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            words = dict(line.split(":", 1) for line in file if ":" in line)
    except FileNotFoundError:
        return True
    return bool(int(words.get("SigBlk", "0"), 16) >> (number - 1) & 1) or "Z" in words["State"]


def test_a_rank_that_memory_was_too_small_for_says_so(cli_without_daemon, data_dir, memory_cgroup):
    checkpoints.make_model(data_dir, shards=2, mib=96)
    group = memory_cgroup(64 << 20)
    cli_without_daemon.wrapper = group.wrapper
    finished = cli_without_daemon.run(
        "load", data_dir, "--ranks", "1", "--own", "--no-daemon", code=1
    )
    assert group.oom_kills > 0
    assert "killed by signal 9" in finished.stderr, finished
    assert "probably for want of memory" in finished.stderr, finished


def test_a_rank_that_was_killed_otherwise_is_not_said_to_want_memory(
    daemon, cli, data_dir, mount_slowfs
):
    checkpoints.make_model(data_dir, mib=4)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 1 << 20)
    load = cli.start("load", slowfs.mount, "--ranks", "1")
    daemon.wait_for_sessions(1)
    slowfs.wait_until_held()
    os.kill(daemon.sessions()[0]["pid"], signal.SIGKILL)
    slowfs.release()
    finished = load.finish(code=1)
    assert "killed by signal 9" in finished.stderr, finished
    assert "want of memory" not in finished.stderr
