#include "common/cached_bytes.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <sys/mman.h>
#include <sys/syscall.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kSampleBytes = 1 * kMiB;

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

bool AllCached(int fd, uint64_t begin, uint64_t end) {
  const absl::StatusOr<uint64_t> cached = CachedBytes(fd, begin, end);
  return cached.ok() && *cached >= AlignUp(end, PageBytes()) - AlignDown(begin, PageBytes());
}

bool LooksCached(int fd, absl::Span<const std::byte> file, uint64_t begin, uint64_t end) {
  CHECK(begin <= end && end <= file.size());
  if (begin == end) return true;
  if (!AllCached(fd, begin, end)) return false;
  const uint64_t page = PageBytes();
  const uint64_t last = AlignDown(end - 1, page);
  for (uint64_t offset = AlignDown(begin, page);; offset = std::min(offset + kSampleBytes, last)) {
    unsigned char state = 0;
    // The address is constant; mincore changes nothing.
    auto* const address = const_cast<std::byte*>(file.data()) + offset;
    if (mincore(address, page, &state) != 0 || (state & 1) == 0) return false;
    if (offset == last) return true;
  }
}

}  // namespace forestage
