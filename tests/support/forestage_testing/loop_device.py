"""A block device of our own: an image file behind a loop device, with an account of what is read.

The disk below a build tells little: its counters are everybody's, and its read_ahead_kb is whatever
the machine has. A loop device has its own of both. Its file system (ext4 or XFS) is mounted read-only
once it is filled, so that what is read afterwards is read by the test. Its image is opened for
direct I/O where the file system below can do that, so that its pages are not in memory twice.
"""

import contextlib
import os
import pathlib
import subprocess

# What most devices have.
READ_AHEAD_KB_DEFAULT = 128
SECTOR_BYTES = 512
LOOP_MAJOR = 7
# How each is made; ext4 without a journal and without tables to be written later, since nobody but
# us reads.
MKFS = {
    "ext4": "mkfs.ext4 -q -F -m 0 -O ^has_journal,^resize_inode -E lazy_itable_init=0",
    "xfs": "mkfs.xfs -q -f",
}
# mkfs.xfs makes none that is smaller.
XFS_MIB_MIN = 300


class LoopDevice:
    """A mounted one; made by `loop_device`."""

    def __init__(self, device, mount):
        self.device = device
        self.mount = pathlib.Path(mount)
        self._sysfs = pathlib.Path("/sys/block") / device.name

    @property
    def is_direct(self):
        return (self._sysfs / "loop" / "dio").read_text().strip() == "1"

    @property
    def read_ahead_kb(self):
        return int((self._sysfs / "queue" / "read_ahead_kb").read_text())

    @read_ahead_kb.setter
    def read_ahead_kb(self, value):
        (self._sysfs / "queue" / "read_ahead_kb").write_text(str(value))

    @property
    def max_sectors_kb(self):
        return int((self._sysfs / "queue" / "max_sectors_kb").read_text())

    def bytes_read(self):
        """From the device since it was attached."""
        return int((self._sysfs / "stat").read_text().split()[2]) * SECTOR_BYTES

    def read_metadata(self):
        """Brings directories and inodes into memory, so that later reads are of data only."""
        for path in self.mount.rglob("*"):
            path.lstat()


def _run(*arguments):
    return subprocess.run(
        [str(argument) for argument in arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


def _attach(image):
    found = pathlib.Path(_run("losetup", "--find"))
    if not found.exists():
        # A /dev that nobody keeps up to date.
        os.mknod(found, 0o60600, os.makedev(LOOP_MAJOR, int(found.name.removeprefix("loop"))))
    return pathlib.Path(_run("losetup", "--find", "--show", "--direct-io=on", image))


@contextlib.contextmanager
def _mounted(device, mount, file_system, options):
    _run("mount", "-t", file_system, "-o", options, device, mount)
    try:
        yield
    finally:
        # Lazily if a process that hangs keeps it: the device goes with its last user.
        done = subprocess.run(["umount", str(mount)], stderr=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            _run("umount", "-l", mount)


@contextlib.contextmanager
def loop_device(
    directory, fill, *, mib, read_ahead_kb=READ_AHEAD_KB_DEFAULT, file_system="ext4"
):
    """`fill(path)` writes what the file system shall hold, at most about `mib` MiB.

    `directory` is private, lies on a disk, and takes the image and the mount. Nothing of the files
    is in memory when the block begins, but for inodes and directories; device and mount are gone
    when it ends, however it ends.
    """
    directory = pathlib.Path(directory)
    image = directory / "image"
    mount = directory / "mount"
    mount.mkdir()
    image_mib = mib + mib // 16 + 4
    if file_system == "xfs":
        # Its log and tables take their part.
        image_mib = max(image_mib + 80, XFS_MIB_MIN)
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, image_mib << 20)
    _run(*MKFS[file_system].split(), image)
    device = _attach(image)
    try:
        with _mounted(device, mount, file_system, "noatime"):
            fill(mount)
        loop = LoopDevice(device, mount)
        loop.read_ahead_kb = read_ahead_kb
        with _mounted(device, mount, file_system, "ro,noatime"):
            loop.read_metadata()
            yield loop
    finally:
        _run("losetup", "--detach", device)
        image.unlink()
        mount.rmdir()
