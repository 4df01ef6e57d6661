"""Free memory that is really there.

The host of a virtual machine may take back what is free for some seconds (free page reporting), and
gives it again at the first touch: 0.5 to 6 s a GiB, at the cost of whichever reader comes first.
"""

import mmap

MIB = 1 << 20
HUGE_PAGE_BYTES = 2 * MIB
MADV_POPULATE_WRITE = 23
# Left alone, so that nothing is reclaimed for this.
SPARE_BYTES = 512 * MIB
# Of a checkpoint: its pages, a copy of them, and what belongs to either.
OF_CHECKPOINT = 2.25


def free_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemFree:"))


def touch(wanted_bytes):
    """Touches so much of free memory, as far as there is, and lets it go; returns how much."""
    size = min(int(wanted_bytes), free_bytes() - SPARE_BYTES) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if size <= 0:
        return 0
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(MADV_POPULATE_WRITE)
        except OSError:
            # A kernel without huge pages, or before 5.14: page by page.
            for offset in range(0, size, mmap.PAGESIZE):
                memory[offset] = 1
    return size
