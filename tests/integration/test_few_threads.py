"""A daemon that may start no more threads, as under TasksMax= or a container's limit of pids."""

import os
import shutil
import subprocess

from forestage_testing import checkpoints
from forestage_testing.cli import Cli, read_digests

# Nobody else's, so that its limit of processes counts this daemon's threads only.
USER = 54321
BECOME_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
STAGED = "rank_striped_read_ahead"
# Above those at rest. At one end no rank is served by the daemon, at the other all are.
EXTRA_THREADS = [*range(0, 12), 16, 24, 64]


def as_user(command):
    """Also a root without the capability to raise limits may lower those of its own processes."""
    subprocess.run([*BECOME_USER, *command.split()], check=True)


def thread_count(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def test_without_threads_ranks_load_natively_and_with_them_through_the_daemon(
    short_dir, start_daemon, build_dir, data_dir, need_root, tmp_path
):
    os.chown(short_dir, USER, USER)
    # Whatever lies above the build, this user can start it here.
    program = shutil.copy(build_dir / "bin" / "forestaged", short_dir)
    daemon = start_daemon(
        directory=short_dir,
        wrapper=["sh", "-c", f'shift; exec {" ".join(BECOME_USER)} {program} "$@"', "sh"],
        flags=["--extent-size", "256KiB", "--descriptor-timeout", "2s", "--reader", "threads"],
    )
    checkpoints.make_model(data_dir, shards=3, mib=2)
    expected = checkpoints.expected_digests(data_dir, 2, "rows")
    cli = Cli(build_dir, daemon.socket)
    environment = {**os.environ, "FORESTAGE_DAEMON_USER": str(USER)}
    effective = []
    at_rest = thread_count(daemon.pid)
    for extra in EXTRA_THREADS:
        limit = at_rest + extra
        as_user(f"prlimit --pid {daemon.pid} --nproc={limit}:")
        digests = tmp_path / f"digests-{extra}"
        told = cli.load(data_dir, ranks=2, share="rows", digests=digests, env=environment)
        assert daemon.is_running(), daemon.log
        assert read_digests(digests) == expected, extra
        effective.append({rank["effective"] for rank in told["ranks"]})
        as_user(f"prlimit --pid {daemon.pid} --nproc={at_rest + EXTRA_THREADS[-1]}:")
        daemon.wait_for_no_sessions()
    assert {"native"} in effective
    assert effective[-1] == {STAGED}
    assert "no thread can be started" in daemon.log
    # It needs one to end in order, too.
    as_user(f"prlimit --pid {daemon.pid} --nproc=1:")
    daemon.stop()
