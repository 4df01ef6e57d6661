"""The daemon, the storage and the checkpoints that rounds happen to, and what must hold when all is
quiet again."""

import os
import shutil
import tempfile

import grpc

from forestage_testing import checkpoints
from forestage_testing.daemon import Daemon
from forestage_testing.processes import (
    GUARD_SECONDS,
    anonymous_bytes,
    descriptor_count,
    wait_until,
)
from forestage_testing.rank import Rank
from forestage_testing.slowfs import Slowfs

# Small, so that small checkpoints have many.
DAEMON_FLAGS = ["--extent-size", "256KiB"]
# What a daemon may have more than after its first session: memory that its allocator keeps for
# the next one, threads that wait for work, each with its stack and its allocator's arena.
ANONYMOUS_BYTES_MORE = 24 << 20
MAPPINGS_MORE = 240
DESCRIPTORS_MORE = 0
# How long it may take until they are back; only guards against a leak.
SETTLE_SECONDS = GUARD_SECONDS
# A sanitizer keeps what was freed.
SANITIZER_ANONYMOUS_BYTES_MORE = 1 << 30
SANITIZER_MAPPINGS_MORE = 4000

MODELS = {
    "large": {"seed": 1, "shards": 3, "mib": 12},
    "small": {"seed": 2, "shards": 2, "mib": 4},
}


def tensor_names():
    """Of each checkpoint, as rounds are drawn from them."""
    with tempfile.TemporaryDirectory() as directory:
        return {
            name: sorted(checkpoints.read_reference(checkpoints.make_model(path, **model)))
            for name, model in MODELS.items()
            if (path := os.path.join(directory, name))
        }


class World:
    def __init__(self, build_dir, data_dir, tally):
        """`data_dir` is empty, on a disk."""
        self.build_dir = build_dir
        self.tally = tally
        self.directory = tempfile.mkdtemp(prefix="fs", dir="/tmp")
        self.sources = {
            name: checkpoints.make_model(data_dir / name, **model) for name, model in MODELS.items()
        }
        # For the first session of a daemon; on the disk itself.
        self.probe = data_dir / "probe"
        checkpoints.make_model(self.probe, seed=3, shards=1, mib=1)
        self._snapshots = {path: checkpoints.snapshot(path) for path in self._directories()}
        self.digests = {
            path: {name: digest for (_, name), digest in self._digests_of(path).items()}
            for path in self._directories()
        }
        self.tensor_bytes = {
            path: {name: len(data) for name, (_, data) in checkpoints.read_reference(path).items()}
            for path in self._directories()
        }
        self.slowfs = {}
        for name, source in self.sources.items():
            mount_directory = os.path.join(self.directory, name)
            os.mkdir(mount_directory)
            self.slowfs[name] = Slowfs(build_dir, source, mount_directory)
        self._daemon_directory = os.path.join(self.directory, "d")
        os.mkdir(self._daemon_directory)
        self.daemon = None
        self._baseline = None

    def _directories(self):
        return [*self.sources.values(), self.probe]

    @staticmethod
    def _digests_of(path):
        return checkpoints.expected_digests(path, 1, "all")

    @property
    def daemon_log_path(self):
        return os.path.join(self._daemon_directory, "log")

    def start_daemon(self, reader="auto"):
        """Starts one and does not wait for it."""
        if self.daemon is not None:
            self.daemon.abandon()
        flags = [*DAEMON_FLAGS, "--reader", reader]
        self.daemon = Daemon(self.build_dir, self._daemon_directory, flags=flags)
        self._baseline = None
        return self.daemon

    def start_probe(self, group):
        """A first session, of a checkpoint on the disk."""
        return Rank(self.build_dir, self.probe, socket=self.daemon.socket, group=group)

    def measure_baseline(self):
        """Of a daemon that is idle and has had a session."""
        if self._baseline is not None:
            return
        self.wait_until_idle()
        self._baseline = {
            "descriptors": descriptor_count(self.daemon.pid),
            "mappings": len(mappings(self.daemon.pid)),
            "anonymous": anonymous_bytes(self.daemon.pid),
            "files": self._socket_files(),
        }

    def _socket_files(self):
        return sorted(set(os.listdir(self._daemon_directory)) - {"log"})

    def set_storage(self, plan):
        for name, slowfs in self.slowfs.items():
            slowfs.set("latency_ms", plan.latency_ms)
            slowfs.set("bandwidth_mib_s", MODELS[name]["mib"] / plan.load_seconds)
            slowfs.set("keep_cache", "on" if plan.keep_cache else "off")
            # As far as nobody holds them any more.
            for path in checkpoints.shard_paths(slowfs.mount):
                checkpoints.drop_pages(path)

    def calm_storage(self):
        for slowfs in self.slowfs.values():
            slowfs.release()
            slowfs.clear_faults()

    def wait_until_idle(self):
        """The daemon has no session, group or lease, and holds no checkpoint."""
        last = {}

        def idle():
            code = self.daemon.process.poll()
            assert code is None, f"the daemon has ended: {code}"
            try:
                last.update(self.daemon.status())
            except grpc.RpcError as error:
                last["error"] = str(error)
                return False
            return not last["checkpoints"] and int(last["memory"]["leased_bytes"]) == 0

        try:
            wait_until(idle, "the daemon to have no session and no lease")
        except AssertionError as error:
            raise AssertionError(f"{error}; its status: {last}") from None

    def check_idle(self):
        """Everything is back to the start; ranks and their children have gone."""
        self.wait_until_idle()
        pid = self.daemon.pid
        held = held_files(pid)
        try:
            wait_until(lambda: not held(), "the daemon to let go of files")
        except AssertionError as error:
            raise AssertionError(f"{error}: {held()}") from None
        sanitized = any("libasan" in line or "clang_rt" in line for line in mappings(pid))
        most = {
            "descriptors": self._baseline["descriptors"] + DESCRIPTORS_MORE,
            "mappings": self._baseline["mappings"]
            + (SANITIZER_MAPPINGS_MORE if sanitized else MAPPINGS_MORE),
            "anonymous": self._baseline["anonymous"]
            + (SANITIZER_ANONYMOUS_BYTES_MORE if sanitized else ANONYMOUS_BYTES_MORE),
        }
        now = {
            "descriptors": lambda: descriptor_count(pid),
            "mappings": lambda: len(mappings(pid)),
            "anonymous": lambda: anonymous_bytes(pid),
        }
        for name, measure in now.items():
            wait_until(
                lambda name=name, measure=measure: measure() <= most[name],
                f"{name} of the daemon to be at most {most[name]}, after its first session "
                f"{self._baseline[name]}, now {measure()}",
                guard_seconds=SETTLE_SECONDS,
            )
            self.tally.note_peak(name, measure() - self._baseline[name])
        files = self._socket_files()
        assert files == self._baseline["files"], f"files beside the sockets: {files}"
        for name, slowfs in self.slowfs.items():
            wait_until(
                lambda slowfs=slowfs: slowfs.stats()["in_flight"] == 0, f"reads of {name} to end"
            )

    def close(self):
        """A clean end of everything: no socket is left, nothing of the checkpoints was changed."""
        try:
            self.daemon.stop()
            for path in self._directories():
                assert checkpoints.snapshot(path) == self._snapshots[path], f"{path} was changed"
        finally:
            self.abandon()

    def abandon(self):
        if self.daemon is not None:
            self.daemon.abandon()
        for slowfs in self.slowfs.values():
            if slowfs.process.poll() is None:
                slowfs.release()
                slowfs.stop()
        self.slowfs.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def mappings(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return file.readlines()


def held_files(pid):
    """A function that tells what a daemon has open or mapped of checkpoints and memory files."""

    def belongs_to_a_session(path):
        return ".safetensors" in path or "memfd:" in path

    def held():
        found = set()
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            try:
                path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            except FileNotFoundError:
                continue
            if belongs_to_a_session(path):
                found.add(path)
        found |= {line.split()[-1] for line in mappings(pid) if belongs_to_a_session(line)}
        return found

    return held
