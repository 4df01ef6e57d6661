// How much one read-ahead advice brings in: the kernel cuts an advice silently at
// max(read_ahead_kb, max_sectors_kb) of the mount's backing device.
#pragma once

#include <cstdint>
#include <string>

namespace forestage {

// For the file system with device number `device` (st_dev). Reads `sysfs_root`/class/bdi and
// `sysfs_root`/dev/block; a partition has the queue of its disk. kAdviceBytesDefault where neither
// says anything; at most kAdviceBytesCap; at least a page, and a multiple of pages.
uint64_t AdviceBytesMax(uint64_t device, const std::string& sysfs_root = "/sys");

}  // namespace forestage
