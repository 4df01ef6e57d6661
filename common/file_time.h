// Times of files as our protocols carry them.
#pragma once

#include <cstdint>

namespace forestage {

// Nanoseconds since the clock's zero, of a timespec or a statx_timestamp.
template <typename Timestamp>
int64_t NanosecondsOf(const Timestamp& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace forestage
