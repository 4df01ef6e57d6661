"""The readers from PyPI: N worker processes in their own virtual environment, kept between runs."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import programs
from measurement import rate

IMPORT_PATIENCE_SECONDS = 180
# What a reader of the tables should know of them.
NOTES = {
    "runai-model-streamer": "each rank reads whole files and cuts its rows",
    "fastsafetensors": "reads past the page cache; of several ranks one reads a file and sends "
                       "the others their rows",
}


class Worker:
    def __init__(self, python, log):
        self.process = subprocess.Popen(
            [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer_worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
            # The allocator's first choice, which it would change as it sees memory freed: each load
            # is to be as the first of a process.
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
                 "GLOO_SOCKET_IFNAME": "lo"},
            preexec_fn=programs.die_with_parent)
        self._rest = b""

    def send(self, command):
        self.process.stdin.write(json.dumps(command).encode() + b"\n")

    def answer(self, patience=programs.RUN_PATIENCE_SECONDS):
        deadline = time.monotonic() + patience
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise programs.ReaderFailed("a rank of the peers hangs")
            part = self.process.stdout.read(65536)
            if not part:
                raise programs.ReaderFailed("a rank of the peers has ended; see the peers' log")
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Peers:
    """Use as a context. Loads raise ReaderFailed; the workers are started anew afterwards."""

    def __init__(self, context, python):
        self._context = context
        self._python = python
        self._log = open(os.path.join(context.directory, "peers.log"), "w")
        self._workers = []
        self._states = {}
        self._private = tempfile.mkdtemp(prefix="forestage-bench-peers.")
        self._meetings = 0

    def __enter__(self):
        self._start(1)
        return self

    def __exit__(self, *_):
        self._stop()
        self._log.close()
        shutil.rmtree(self._private)

    def _start(self, count):
        if len(self._workers) >= count:
            return
        new = [Worker(self._python, self._log) for _ in range(count - len(self._workers))]
        self._workers += new
        for worker in new:
            self._states = worker.answer(IMPORT_PATIENCE_SECONDS)["peers"]

    def _stop(self):
        for worker in self._workers:
            worker.stop()
        self._workers = []
        # The next workers meet anew.
        self._meetings += 1

    def names(self):
        return [name for name, error in self._states.items() if error is None]

    def knows(self, name):
        return self._states.get(name, "missing") is None

    def errors(self):
        return {name: error for name, error in self._states.items() if error is not None}

    def load(self, name, paths, ranks, measure):
        """By `ranks` processes at once, from the moment all of them may begin to the last's end."""
        try:
            return self._load(name, paths, ranks, measure)
        except (programs.ReaderFailed, OSError) as error:
            self._stop()
            raise programs.ReaderFailed(str(error)) from error

    def _load(self, name, paths, ranks, measure):
        self._start(ranks)
        workers = self._workers[:ranks]
        meeting_file = os.path.join(self._private, f"meeting-{self._meetings}")
        for rank, worker in enumerate(workers):
            worker.send({"load": name, "paths": list(paths), "rank": rank, "ranks": ranks,
                         "measure": measure, "meeting_file": meeting_file})
        for worker in workers:
            worker.answer()
        begun = time.monotonic()
        for worker in workers:
            worker.send("go")
        ended = [worker.answer() for worker in workers]
        for worker in workers:
            worker.send("clean")
        for worker in workers:
            worker.answer()
        failed = [told["error"] for told in ended if told["error"] is not None]
        if failed:
            raise programs.ReaderFailed(failed[0])
        total = sum(os.stat(path).st_size for path in paths)
        return rate(total, max(told["ended_at"] for told in ended) - begun,
                    taken_bytes=sum(told["bytes"] for told in ended))
