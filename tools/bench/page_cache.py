"""What the page cache holds of a file: to evict it, to fill it, and to prove either."""

import ctypes
import mmap
import os
import time

PAGE_BYTES = mmap.PAGESIZE
# Of a warm checkpoint so much may be missing: some kernels page out idle pages on their own.
WARM_SHARE_MIN = 63 / 64
# So much a reader must have left there that fills the page cache; one that takes long may see pages
# go meanwhile, one that fills nothing leaves none.
FILLED_SHARE_MIN = 15 / 16
# A reader that has ended may take so long until the kernel has let go of its mappings.
EVICTION_PATIENCE_SECONDS = 5

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class NotProven(Exception):
    """The page cache is not as this measurement needs it, so there is no measurement."""


def pages_of(paths):
    """What the files have when each is rounded up to whole pages."""
    return sum(-(-os.stat(path).st_size // PAGE_BYTES) for path in paths)


def resident_pages(path):
    """By mincore, which tells the truth to the owner of a file and to root only."""
    size = os.stat(path).st_size
    if size == 0:
        return 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {path}")
    try:
        pages = bytearray(-(-size // PAGE_BYTES))
        vector = (ctypes.c_ubyte * len(pages)).from_buffer(pages)
        if _libc.mincore(address, size, vector) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
        del vector
    finally:
        _libc.munmap(address, size)
    # Only the lowest bit of each entry has a meaning, and the kernel leaves the others 0.
    return pages.count(1)


def residency(paths):
    """Share of the files' pages that are in the page cache: 0 to 1."""
    return sum(resident_pages(path) for path in paths) / max(1, pages_of(paths))


def prove_cold(paths):
    """Raises NotProven when a single page of the files is in the page cache."""
    for path in paths:
        pages = resident_pages(path)
        if pages:
            raise NotProven(f"not cold: {pages} pages of {path} are in the page cache")


def prove_warm(paths, share_min=WARM_SHARE_MIN):
    share = residency(paths)
    if share < share_min:
        raise NotProven(f"not warm: only {100 * share:.2f} % of {os.path.dirname(paths[0])} is in "
                        "the page cache")


def _ask_to_evict(paths):
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def evict(paths):
    """Until nothing of the files is in the page cache; NotProven when somebody holds on to it."""
    deadline = time.monotonic() + EVICTION_PATIENCE_SECONDS
    dropped_all = False
    while True:
        _ask_to_evict(paths)
        try:
            return prove_cold(paths)
        except NotProven:
            if time.monotonic() > deadline:
                raise
            if not dropped_all and time.monotonic() > deadline - EVICTION_PATIENCE_SECONDS / 2:
                _drop_whole_page_cache()
                dropped_all = True
        time.sleep(0.02)


def _drop_whole_page_cache():
    """For pages that wait in some processor's batch, where advice about a file cannot reach."""
    try:
        with open("/proc/sys/vm/drop_caches", "w") as drop:
            drop.write("1")
    except OSError:
        pass
