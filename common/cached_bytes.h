// How much of a file is in the page cache, asked cheaply (cachestat, Linux 6.5).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace forestage {

// The system call's number, the same on every architecture.
inline constexpr long kCachestatCall = 451;

// Bytes, in whole pages, of the pages of [begin, end) that the page cache holds. It counts pages
// that are still being read, and those whose read failed, and is always 0 through overlayfs: good
// for a cheap look, not for a promise. About 1 ms per GiB that is cached, nothing for what is not.
// Errors of the call: UNIMPLEMENTED before Linux 6.5, PERMISSION_DENIED for who neither owns nor
// may write the file.
absl::StatusOr<uint64_t> CachedBytes(int fd, uint64_t begin, uint64_t end);

// Whether it counts every page of [begin, end); false where it tells nothing.
bool AllCached(int fd, uint64_t begin, uint64_t end);

// AllCached and, as far as one page in each MiB tells (mincore), up to date. A look at each page
// takes ten times as long and is what a promise needs: a page whose read failed for somebody, or
// that is just on its way, may be overlooked here. `file` is a mapping of the file from its
// beginning on. Requires: begin <= end <= file.size().
bool LooksCached(int fd, absl::Span<const std::byte> file, uint64_t begin, uint64_t end);

}  // namespace forestage
