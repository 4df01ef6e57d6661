// Byte units, sizes as people write them, and page arithmetic.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kTiB = 1024 * kGiB;

// "64KiB", "8MiB", "1GiB", "2TiB" or a plain number of bytes; nothing else, so that nobody has to
// guess what "8M" means. INVALID_ARGUMENT otherwise, and for what does not fit 64 bits.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);
// The exact size in the largest unit that divides it, as ParseByteSize reads it: "8MiB", "1000".
std::string FormatByteSize(uint64_t bytes);

// Size in bytes of a page of this machine. A power of two.
uint64_t PageBytes();

// Requires: `alignment` is a power of two.
constexpr uint64_t AlignDown(uint64_t value, uint64_t alignment) {
  return value & ~(alignment - 1);
}
// Requires: `alignment` is a power of two and the result fits 64 bits.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return AlignDown(value + alignment - 1, alignment);
}
// Requires: divisor > 0.
constexpr uint64_t DivideRoundingUp(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace forestage
