#include "client/src/destination_memory.h"

#include <cstdint>

#include <sys/mman.h>

#include "common/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace forestage {
namespace {

// Of shorter pieces of fresh memory the pages are few.
constexpr size_t kGivenBytesMin = 64 * kKiB;

// Whether memory is in use already, as its middle tells.
bool IsInUse(absl::Span<std::byte> memory) {
  const auto middle = reinterpret_cast<uintptr_t>(memory.data()) + memory.size() / 2;
  unsigned char in_memory = 0;
  void* const page = reinterpret_cast<void*>(AlignDown(middle, PageBytes()));
  return mincore(page, PageBytes(), &in_memory) != 0 || (in_memory & 1) != 0;
}

}  // namespace

void AdviseHugePages(absl::Span<std::byte> destination) {
  if (destination.size() < kHugeDestinationBytesMin || IsInUse(destination)) return;
  // Whole pages outwards: the allocator's own boundaries, mostly, so that neighbours stay one
  // mapping for the system, of which a process may have 65,530.
  const auto address = reinterpret_cast<uintptr_t>(destination.data());
  const uintptr_t begin = AlignDown(address, PageBytes());
  const uintptr_t end = AlignUp(address + destination.size(), PageBytes());
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

void GivePages(absl::Span<std::byte> destination) {
  if (destination.size() < kGivenBytesMin || IsInUse(destination)) return;
  const auto address = reinterpret_cast<uintptr_t>(destination.data());
  const uintptr_t begin = AlignUp(address, PageBytes());
  const uintptr_t end = AlignDown(address + destination.size(), PageBytes());
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

}  // namespace forestage
