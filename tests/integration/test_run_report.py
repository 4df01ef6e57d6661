"""What `./dev run` does after the build: a report, and nothing left behind."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from forestage_testing import checkpoints
from forestage_testing.processes import GUARD_SECONDS, wait_until

REPORTER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "run_report.py"


def start(build_dir, work, *arguments, caller=None, output=subprocess.PIPE):
    environment = {**os.environ, "TMPDIR": str(work)}
    return subprocess.Popen(
        [sys.executable, REPORTER, "--bin", build_dir / "bin", "--work", work, "--from",
         caller or os.getcwd(), *arguments],
        stdout=output, stderr=subprocess.STDOUT, text=True, env=environment,
    )


def daemons_below(directory):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if command.split("\0")[0].endswith("forestaged") and str(directory) in command:
            found.append(int(pid))
    return found


def test_reports_a_checkpoint_named_from_the_callers_directory(build_dir, data_dir, short_dir):
    (data_dir / "model").mkdir()
    checkpoints.make_model(data_dir / "model", shards=2, mib=2)
    process = start(build_dir, short_dir, "--ranks", "2", "model", caller=data_dir)
    output, _ = process.communicate(timeout=GUARD_SECONDS)
    assert process.returncode == 0, output
    assert "2 of 2 ranks have every byte right, 0 slices differ" in output
    assert not daemons_below(short_dir)
    assert os.listdir(short_dir) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_leaves_no_daemon_when_it_is_ended(number, build_dir, data_dir, short_dir, mount_slowfs):
    checkpoints.make_model(data_dir, shards=1, mib=4)
    slowfs = mount_slowfs(data_dir)
    slowfs.hold("*", 2 << 20)
    # No pipe: a rank whose read is held may keep it open for longer than the reporter lives.
    process = start(build_dir, short_dir, str(slowfs.mount), output=subprocess.DEVNULL)
    slowfs.wait_until_held()
    wait_until(lambda: daemons_below(short_dir), "the daemon to start")
    process.send_signal(number)
    process.wait(GUARD_SECONDS)
    slowfs.release()
    wait_until(lambda: not daemons_below(short_dir), "the daemon to end")


def test_wrong_arguments_are_said_at_once(build_dir, short_dir):
    for arguments in (["--ranks", "0"], ["/nonexistent"], ["--bogus"]):
        process = start(build_dir, short_dir, "--check", *arguments)
        output, _ = process.communicate(timeout=GUARD_SECONDS)
        assert process.returncode == 2
        assert "error" in output
