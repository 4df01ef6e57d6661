// How much of a file is in the page cache, asked cheaply (cachestat, Linux 6.5).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace forestage {

// The system call's number, the same on every architecture.
inline constexpr long kCachestatCall = 451;

// Bytes, in whole pages, of the pages of [begin, end) that the page cache holds. It counts pages
// that are still being read, and those whose read failed, and is always 0 through overlayfs: good
// for a cheap look, not for a promise. About 1 ms per GiB that is cached, nothing for what is not.
// Errors of the call: UNIMPLEMENTED before Linux 6.5, PERMISSION_DENIED for who neither owns nor
// may write the file.
absl::StatusOr<uint64_t> CachedBytes(int fd, uint64_t begin, uint64_t end);

}  // namespace forestage
