#include "client/cli/own_memory.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;

}  // namespace

absl::StatusOr<OwnMemory> OwnMemory::Reserve(uint64_t bytes, uint64_t parts) {
  const uint64_t wanted = AlignUp(bytes + parts * kAlignment, kHugePageBytes);
  if (wanted == 0) return OwnMemory();
  // A huge page more, so that the rest can begin at one.
  const uint64_t mapped = wanted + kHugePageBytes;
  void* const address =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return ErrnoStatus(errno, absl::StrCat("memory of ", mapped, " bytes"));
  const auto mapped_begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t begin = AlignUp(mapped_begin, kHugePageBytes);
  const uintptr_t end = begin + wanted;
  if (begin > mapped_begin) munmap(address, begin - mapped_begin);
  const uintptr_t mapped_end = mapped_begin + mapped;
  if (mapped_end > end) munmap(reinterpret_cast<void*>(end), mapped_end - end);
  madvise(reinterpret_cast<void*>(begin), wanted, MADV_HUGEPAGE);
  return OwnMemory(reinterpret_cast<std::byte*>(begin), wanted);
}

OwnMemory::OwnMemory(OwnMemory&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      taken_(std::exchange(other.taken_, 0)) {}

OwnMemory& OwnMemory::operator=(OwnMemory&& other) noexcept {
  if (this != &other) {
    Release();
    address_ = std::exchange(other.address_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    taken_ = std::exchange(other.taken_, 0);
  }
  return *this;
}

OwnMemory::~OwnMemory() { Release(); }

void OwnMemory::Release() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

absl::Span<std::byte> OwnMemory::Take(uint64_t bytes) {
  const uint64_t next = AlignUp(taken_, kAlignment);
  CHECK(next + bytes <= bytes_);
  taken_ = next + bytes;
  return {address_ + next, bytes};
}

}  // namespace forestage
