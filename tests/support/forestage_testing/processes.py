"""Subprocesses whose time-outs only guard against a hang."""

import json
import os
import select
import signal
import subprocess
import time

# Nothing here takes nearly as long; a test that gets there hangs.
GUARD_SECONDS = float(os.environ.get("FORESTAGE_TEST_GUARD_SECONDS", "60"))

WITHOUT_CAPABILITIES = "-fowner,-dac_override"
# Runs what follows as root that has no more rights over others' files than anybody.
AS_STRANGER = [
    "setpriv",
    f"--bounding-set={WITHOUT_CAPABILITIES}",
    f"--inh-caps={WITHOUT_CAPABILITIES}",
]


def wait_until(condition, what, guard_seconds=GUARD_SECONDS):
    """Polls until condition() is true and returns its value; `what` completes 'waiting for ...'."""
    deadline = time.monotonic() + guard_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waiting for {what}: still not so after {guard_seconds:g} s")
        time.sleep(0.005)


class Finished:
    """What a program left: exit code, output, and its JSON where it wrote some."""

    def __init__(self, arguments, code, stdout, stderr):
        self.arguments = arguments
        self.code = code
        self.stdout = stdout
        self.stderr = stderr

    @property
    def json(self):
        return json.loads(self.stdout)

    def __str__(self):
        return (
            f"{' '.join(self.arguments)}\nexit code {self.code}\n"
            f"stdout: {self.stdout}\nstderr: {self.stderr}"
        )


class Running:
    """A program that runs beside the test."""

    def __init__(self, arguments, **options):
        self.arguments = [str(argument) for argument in arguments]
        options.setdefault("stdin", subprocess.DEVNULL)
        self.process = subprocess.Popen(
            self.arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            **options,
        )

    @property
    def pid(self):
        return self.process.pid

    def finish(self, guard_seconds=GUARD_SECONDS, code=0):
        """Waits for the end; asserts the exit code unless `code` is None."""
        try:
            stdout, stderr = self.process.communicate(timeout=guard_seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            stdout, stderr = self.process.communicate()
            raise AssertionError(
                f"hangs:\n{Finished(self.arguments, None, stdout, stderr)}"
            ) from None
        finished = Finished(self.arguments, self.process.returncode, stdout, stderr)
        assert code is None or finished.code == code, f"expected exit code {code}:\n{finished}"
        return finished

    def is_running(self):
        return self.process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def kill_all(self):
        """Ends the program and what it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def run(arguments, guard_seconds=GUARD_SECONDS, code=0, **options):
    """Runs a program to its end; asserts the exit code unless `code` is None."""
    return Running(arguments, **options).finish(guard_seconds=guard_seconds, code=code)


def read_line(stream, guard_seconds=GUARD_SECONDS):
    """One line of an unbuffered binary pipe; '' at its end."""
    line = b""
    deadline = time.monotonic() + guard_seconds
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"no line within {guard_seconds:g} s; so far {line!r}")
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace")


def process_handle(pid):
    """A pidfd: names this process and no later one of its number; readable once it has ended."""
    return os.pidfd_open(pid)


def children_of(pid):
    """Process ids of the direct children, in order of their start."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def descriptor_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def thread_count(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def anonymous_bytes(pid):
    """RssAnon of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024
