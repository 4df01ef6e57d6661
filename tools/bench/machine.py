"""Facts about the machine and its block devices."""

import os
import platform
import subprocess


def read_text(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


class BlockDevice:
    """The one that a directory lies on, if it has one."""

    def __init__(self, directory):
        device = os.stat(directory).st_dev
        self.number = f"{os.major(device)}:{os.minor(device)}"
        self.path = os.path.realpath(f"/sys/dev/block/{self.number}")
        self.exists = os.path.exists(os.path.join(self.path, "stat"))
        # Partitions have the queue of their disk.
        whole = self.path if os.path.isdir(self.path + "/queue") else os.path.dirname(self.path)
        self.queue = os.path.join(whole, "queue")

    def read_bytes(self):
        """Bytes that anybody read from the device so far; None where it has no counter."""
        text = read_text(os.path.join(self.path, "stat"))
        return int(text.split()[2]) * 512 if text else None

    def facts(self):
        """read_ahead_kb is that of the mounted file system, which may differ from the queue's."""
        read_ahead = (read_text(f"/sys/class/bdi/{self.number}/read_ahead_kb")
                      or read_text(os.path.join(self.queue, "read_ahead_kb")))
        return {
            "device": os.path.basename(self.path) if self.exists else "none",
            "read_ahead_kb": read_ahead or "?",
            "max_sectors_kb": read_text(os.path.join(self.queue, "max_sectors_kb")) or "-",
        }


def _cpu_model():
    for line in (read_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _version_of_source(root):
    found = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"],
                           capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def facts(root):
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "load_average": os.getloadavg()[0],
        "forestage": _version_of_source(root),
    }
