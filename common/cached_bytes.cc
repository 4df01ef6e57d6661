#include "common/cached_bytes.h"

#include <unistd.h>

#include <cerrno>

#include <sys/syscall.h>

#include "common/errno_status.h"
#include "common/units.h"

namespace forestage {
namespace {

// As the kernel has them.
struct CachestatRange {
  uint64_t offset;
  uint64_t bytes;
};
struct CachestatCounts {
  uint64_t cached;
  uint64_t dirty;
  uint64_t writeback;
  uint64_t evicted;
  uint64_t recently_evicted;
};

}  // namespace

absl::StatusOr<uint64_t> CachedBytes(int fd, uint64_t begin, uint64_t end) {
  // Zero bytes would mean "to the end".
  if (begin >= end) return uint64_t{0};
  CachestatRange range = {.offset = begin, .bytes = end - begin};
  CachestatCounts counts = {};
  if (syscall(kCachestatCall, fd, &range, &counts, 0) != 0) return ErrnoStatus(errno, "cachestat");
  return counts.cached * PageBytes();
}

}  // namespace forestage
