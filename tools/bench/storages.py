"""The storage that is measured: the disk, a loop device on it, and a slow file system over it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile

import checkpoint_writer
import machine

LOOP_READ_AHEAD_KB = 128
START_PATIENCE_SECONDS = 30


class StorageUnavailable(Exception):
    pass


def run(*command):
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise StorageUnavailable(f"{' '.join(command)}: {finished.stderr.strip()}")
    return finished.stdout.strip()


class Disk:
    """Whatever the directory lies on."""

    name = "disk"
    request_latency_seconds = None
    is_slow = False

    def __init__(self, context):
        self._context = context

    def __enter__(self):
        self._device = machine.BlockDevice(self._context.directory)
        return self

    def __exit__(self, *_):
        pass

    def checkpoint(self, wanted_bytes):
        """A directory with a checkpoint of about so many bytes."""
        directory = os.path.join(self._context.directory, f"checkpoint-{wanted_bytes >> 20}MiB")
        if not os.path.isdir(directory):
            self._context.tell(f"writing a checkpoint of {wanted_bytes >> 20} MiB")
        checkpoint_writer.write_checkpoint(directory, wanted_bytes)
        return directory

    def read_bytes(self):
        return self._device.read_bytes()

    def facts(self):
        return self._device.facts()


class Loop:
    """An ext4 image in the directory, read with direct I/O so that the host file is not cached."""

    name = "loop"
    request_latency_seconds = None
    is_slow = False

    def __init__(self, context):
        self._context = context
        self._image = None
        self._device_path = None
        self._mount = None

    def __enter__(self):
        if os.geteuid() != 0:
            raise StorageUnavailable("a loop device needs root")
        # One image holds the largest checkpoint; it stays for the next run.
        wanted = max(self._context.checkpoint_sizes("loop"))
        self._image = os.path.join(self._context.directory, f"loop-{wanted >> 20}MiB.img")
        new = not os.path.exists(self._image)
        try:
            if new:
                self._make_image(int(wanted * 1.1) + (256 << 20))
            self._attach()
        except BaseException:
            self._detach()
            if new:
                self._remove_image()
            raise
        return self

    def _make_image(self, size):
        self._context.tell(f"making a loop device of {size >> 20} MiB")
        run("fallocate", "-l", str(size), self._image)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0",
            self._image)

    def _remove_image(self):
        if os.path.exists(self._image):
            os.unlink(self._image)

    def _attach(self):
        if attached := run("losetup", "--associated", self._image):
            raise StorageUnavailable(f"its image is in use ({attached}): another bench runs, or one "
                                     "was killed: then umount and losetup --detach it")
        self._device_path = run("losetup", "--find", "--show", "--direct-io=on", self._image)
        name = os.path.basename(self._device_path)
        if machine.read_text(f"/sys/block/{name}/loop/dio") != "1":
            raise StorageUnavailable("this file system does not let a loop device read directly")
        with open(f"/sys/block/{name}/queue/read_ahead_kb", "w") as file:
            file.write(str(LOOP_READ_AHEAD_KB))
        self._mount = tempfile.mkdtemp(prefix="forestage-bench-loop.")
        run("mount", "-o", "noatime", self._device_path, self._mount)
        self._device = machine.BlockDevice(self._mount)

    def __exit__(self, *_):
        self._detach()

    def _detach(self):
        if self._mount is not None:
            if os.path.ismount(self._mount):
                subprocess.run(["umount", self._mount], check=False)
            if os.path.ismount(self._mount):
                subprocess.run(["umount", "-l", self._mount], check=False)
            os.rmdir(self._mount)
            self._mount = None
        if self._device_path is not None:
            subprocess.run(["losetup", "--detach", self._device_path], check=False)
            self._device_path = None

    def checkpoint(self, wanted_bytes):
        directory = os.path.join(self._mount, f"checkpoint-{wanted_bytes >> 20}MiB")
        if os.path.isdir(directory):
            return directory
        # One at a time: the image has room for no more.
        for other in os.listdir(self._mount):
            if other.startswith("checkpoint-"):
                shutil.rmtree(os.path.join(self._mount, other))
        self._context.tell(f"writing a checkpoint of {wanted_bytes >> 20} MiB to the loop device")
        checkpoint_writer.write_checkpoint(directory, wanted_bytes)
        return directory

    def read_bytes(self):
        return self._device.read_bytes()

    def facts(self):
        return self._device.facts()


class Slowfs:
    """tests/support/slowfs over a checkpoint on the disk that is itself in memory."""

    is_slow = True

    def __init__(self, context, latency_ms):
        self._context = context
        self._latency_ms = latency_ms
        self.name = f"slowfs-{latency_ms}ms"
        self.request_latency_seconds = latency_ms / 1000
        self._process = None
        self._private = None

    def __enter__(self):
        if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid() != 0:
            raise StorageUnavailable("slowfs needs root and /dev/fuse")
        self._private = tempfile.mkdtemp(prefix="forestage-bench-slowfs.")
        self._mount = os.path.join(self._private, "mount")
        os.mkdir(self._mount)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self):
        self._process = subprocess.Popen(
            [self._context.program("test/slowfs"), "--source", self._context.directory, "--mount",
             self._mount, "--control", self._control(), "--latency-ms", str(self._latency_ms),
             "--keep-cache", "on"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self._process.stdout.readline() != "ready\n":
            raise StorageUnavailable("slowfs did not start")
        self._device = machine.BlockDevice(self._mount)

    def _control(self):
        return os.path.join(self._private, "control")

    def __exit__(self, *_):
        self._stop()

    def _stop(self):
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(START_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        if self._private is not None:
            if os.path.ismount(self._mount):
                subprocess.run(["umount", "-l", self._mount], check=False)
            os.rmdir(self._mount)
            shutil.rmtree(self._private)
            self._private = None

    def checkpoint(self, wanted_bytes):
        source = Disk(self._context).checkpoint(wanted_bytes)
        # What lies below shall not be what is slow.
        for path in checkpoint_writer.shard_paths(source):
            with open(path, "rb") as file:
                while file.read(8 << 20):
                    pass
        return os.path.join(self._mount, os.path.relpath(source, self._context.directory))

    def read_bytes(self):
        """Of what slowfs was asked for, by anybody."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(START_PATIENCE_SECONDS)
            connection.connect(self._control())
            connection.sendall(b"stats\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return json.loads(answer)["bytes"]

    def facts(self):
        return {**self._device.facts(), "device": "FUSE", "max_sectors_kb": "-"}


def storage_named(name, context):
    if name == "disk":
        return Disk(context)
    if name == "loop":
        return Loop(context)
    return Slowfs(context, int(name.removeprefix("slowfs-").removesuffix("ms")))
