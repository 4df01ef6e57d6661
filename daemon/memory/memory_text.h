// The kernel's texts about memory: /proc/meminfo and the files of a memory cgroup. Pure; any bytes
// may come.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/string_view.h"

namespace forestage {

// What a limit that limits nothing is read as.
inline constexpr uint64_t kNoMemoryLimit = std::numeric_limits<uint64_t>::max();

// The bytes of one row ("MemAvailable") of /proc/meminfo, whose unit is kB. nullopt: no such row,
// or it is not as the kernel writes it.
std::optional<uint64_t> MeminfoBytes(absl::string_view meminfo, absl::string_view row);

// The number of a file that holds one number. nullopt for anything else.
std::optional<uint64_t> ParseMemoryCounter(absl::string_view text);

// As ParseMemoryCounter. "max" (version 2) and the numbers near 2^63 by which version 1 says so are
// kNoMemoryLimit.
std::optional<uint64_t> ParseMemoryLimit(absl::string_view text);

// The number of one row of memory.stat. nullopt: no such row, or no number in it.
std::optional<uint64_t> MemoryStatBytes(absl::string_view memory_stat, absl::string_view row);

}  // namespace forestage
