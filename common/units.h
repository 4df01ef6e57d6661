// Byte units and page arithmetic.
#pragma once

#include <cstdint>

namespace forestage {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

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
