"""One rank as a process of its own (load_rank), which can be late, wait in the middle and die."""

import json
import signal
import subprocess

from forestage_testing.cli import clean_environment
from forestage_testing.processes import GUARD_SECONDS, read_line


class Rank:
    """load_rank, or another program of the same options and events (catalog_rank)."""

    def __init__(
        self,
        build_dir,
        directory,
        *,
        socket,
        rank=0,
        size=1,
        group="g",
        flags=(),
        program="load_rank",
        wrapper=(),
    ):
        self.rank = rank
        self.arguments = [
            *map(str, wrapper),
            str(build_dir / "test" / program),
            "--socket",
            str(socket),
            "--group",
            group,
            "--rank",
            str(rank),
            "--size",
            str(size),
            *map(str, flags),
            str(directory),
        ]
        self.process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=clean_environment(),
            start_new_session=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def signal(self, number):
        self.process.send_signal(number)

    def expect(self, event):
        """The next event, which must be of this kind."""
        line = read_line(self.process.stdout)
        assert line, f"rank {self.rank} ended ({self.process.wait(GUARD_SECONDS)}) before {event!r}"
        got = json.loads(line)
        assert got["event"] == event, f"rank {self.rank}: expected {event!r}, got {got}"
        return got

    def resume(self):
        """Lets a rank go on that has paused or holds."""
        self.process.stdin.write(b"\n")

    def finish(self):
        """The 'done' event; asserts exit code 0."""
        done = self.expect("done")
        self.process.stdin.close()
        assert self.process.wait(GUARD_SECONDS) == 0
        return done

    def outcome(self):
        """The last event, 'done' or 'error', of a rank that does not pause."""
        event = {}
        while event.get("event") not in ("done", "error"):
            line = read_line(self.process.stdout)
            assert line, f"rank {self.rank} ended with {self.process.wait(GUARD_SECONDS)}: {event}"
            event = json.loads(line)
        assert self.process.wait(GUARD_SECONDS) == (0 if event["event"] == "done" else 1)
        return event

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(GUARD_SECONDS)

    def digests(self, done):
        return {(self.rank, name): digest for name, digest in done["digests"].items()}

    def abandon(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
