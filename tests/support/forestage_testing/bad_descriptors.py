"""Descriptors that are no weights, by kind."""

import contextlib
import os
import socket

BAD_KINDS = [
    *("fifo", "socket", "eventfd", "directory", "device"),
    *("proc", "sysfs", "path only", "write only"),
]


@contextlib.contextmanager
def descriptor_of(kind, shard, directory):
    """(descriptor, what the refusal says); makes what it needs in `directory`, a path."""
    not_regular, not_readable = "not a regular file", "not open for reading"
    with contextlib.ExitStack() as stack:

        def opened(path, flags):
            descriptor = os.open(path, flags)
            stack.callback(os.close, descriptor)
            return descriptor

        if kind == "fifo":
            os.mkfifo(directory / "fifo")
            yield opened(directory / "fifo", os.O_RDWR), not_regular
        elif kind == "socket":
            pair = socket.socketpair()
            stack.callback(pair[0].close)
            stack.callback(pair[1].close)
            yield pair[0].fileno(), not_regular
        elif kind == "eventfd":
            descriptor = os.eventfd(0)
            stack.callback(os.close, descriptor)
            yield descriptor, not_regular
        elif kind == "directory":
            yield opened(directory, os.O_RDONLY), not_regular
        elif kind == "device":
            yield opened("/dev/zero", os.O_RDONLY), not_regular
        elif kind == "proc":
            yield opened("/proc/self/maps", os.O_RDONLY), "files of proc are not served"
        elif kind == "sysfs":
            yield opened("/sys/kernel/mm/transparent_hugepage/enabled", os.O_RDONLY), "files of sysfs"
        elif kind == "path only":
            yield opened(shard, os.O_PATH), not_readable
        elif kind == "write only":
            yield opened(shard, os.O_WRONLY), not_readable
