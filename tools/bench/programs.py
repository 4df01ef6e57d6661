"""Our own programs: the daemon, and what `forestage` and the fillers print."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

START_PATIENCE_SECONDS = 20
END_PATIENCE_SECONDS = 15
# Longer than anything here takes; a reader that takes longer hangs.
RUN_PATIENCE_SECONDS = 600
PR_SET_PDEATHSIG = 1


class ReaderFailed(Exception):
    """One reader could not do its work; the others go on."""


def die_with_parent():
    """In a child before exec: the kernel ends it when this process is gone, however that went."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run(command, stdout=subprocess.PIPE):
    """Standard output of a command; ReaderFailed with its last words.

    It has a session of its own, so that it is ended with all that it started when this process is
    interrupted.
    """
    try:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL,
                                   stdout=stdout, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, preexec_fn=die_with_parent)
    except FileNotFoundError as error:
        raise ReaderFailed(f"{command[0]} is not installed") from error
    try:
        output, errors = process.communicate(timeout=RUN_PATIENCE_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise ReaderFailed(f"{command[0]} hangs") from error
        raise
    if process.returncode != 0:
        words = (errors.strip() or (output or "").strip()).splitlines()
        raise ReaderFailed(f"{os.path.basename(str(command[0]))} ended with {process.returncode}: "
                           f"{words[-1] if words else 'no words'}")
    return output


class Daemon:
    """A private forestaged."""

    def __init__(self, context, flags=()):
        self._context = context
        self._directory = tempfile.mkdtemp(prefix="forestage-bench.")
        self.socket = os.path.join(self._directory, "d.sock")
        self._log_path = os.path.join(self._directory, "log")
        self._log = open(self._log_path, "w")
        self._process = subprocess.Popen(
            [context.program("bin/forestaged"), "--socket", self.socket, "--metrics-address",
             "none", *flags],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            preexec_fn=die_with_parent)

    def __enter__(self):
        deadline = time.monotonic() + START_PATIENCE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                run([self._context.program("bin/forestage"), "health", "--socket", self.socket])
                return self
            except ReaderFailed:
                time.sleep(0.02)
        with open(self._log_path) as log:
            words = log.read()
        self.__exit__()
        raise ReaderFailed("forestaged did not start: " + words[-500:])

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def forestage_json(context, *arguments):
    return json.loads(run([context.program("bin/forestage"), "--json", *arguments]))
