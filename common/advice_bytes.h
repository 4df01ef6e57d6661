// How much one read-ahead advice brings in, by what the kernel says of the mount's backing device:
// it cuts an advice silently at max(read_ahead_kb, max_sectors_kb).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/units.h"

namespace forestage {

// Largest piece of one read-ahead advice, whatever the mount would take: pieces are also the unit
// in which a read is cancelled.
inline constexpr uint64_t kAdviceBytesCap = 8 * kMiB;
// Where the mount does not say: the kernel's own default read-ahead.
inline constexpr uint64_t kAdviceBytesDefault = 128 * kKiB;

// What sysfs says of a mount's backing device; nullopt where it says nothing.
struct ReadAheadSettings {
  // The file to write to change it; empty where there is none.
  std::string read_ahead_path;
  std::optional<uint64_t> read_ahead_bytes;
  // Largest request that the kernel makes of the device.
  std::optional<uint64_t> request_bytes_max;
  // 0 where the device has no preference.
  std::optional<uint64_t> optimal_io_bytes;
};

// For the file system with device number `device` (st_dev). Reads `sysfs_root`/class/bdi and
// `sysfs_root`/dev/block; a partition has the queue of its disk. Asks no storage.
ReadAheadSettings ReadReadAheadSettings(uint64_t device, const std::string& sysfs_root = "/sys");

// The largest piece that one advice brings in with these settings. kAdviceBytesDefault where they
// say nothing; at most kAdviceBytesCap; at least a page, and a multiple of pages.
uint64_t AdviceBytesMax(const ReadAheadSettings& settings);

}  // namespace forestage
