#include "common/file_mapping.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/units.h"

namespace forestage {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

absl::StatusOr<FileMapping> FileMapping::Map(int fd, uint64_t bytes, int protection) {
  if (bytes == 0) return FileMapping();
  void* address = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("mmap of ", bytes, " bytes"));
  return FileMapping(address, bytes);
}

absl::StatusOr<FileMapping> FileMapping::MapReadOnly(int fd, uint64_t bytes) {
  return Map(fd, bytes, PROT_READ);
}

absl::StatusOr<FileMapping> FileMapping::MapReadWrite(int fd, uint64_t bytes) {
  return Map(fd, bytes, PROT_READ | PROT_WRITE);
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : address_(std::exchange(other.address_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    address_ = std::exchange(other.address_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

FileMapping::~FileMapping() { Unmap(); }

void FileMapping::Unmap() {
  if (address_ != nullptr) munmap(address_, size_);
}

absl::Status FileMapping::PopulateRead(uint64_t begin, uint64_t end) const {
  CHECK(begin <= end && end <= size_);
  if (begin == end) return absl::OkStatus();
  const uint64_t first = AlignDown(begin, PageBytes());
  const uint64_t last = AlignUp(end, PageBytes());
  Interruptions interruptions;
  while (madvise(static_cast<std::byte*>(address_) + first, last - first, MADV_POPULATE_READ) !=
         0) {
    if (interruptions.MayRetry(errno)) continue;
    return ErrnoStatus(errno, "MADV_POPULATE_READ");
  }
  return absl::OkStatus();
}

void FileMapping::LetGo(uint64_t begin, uint64_t end) const {
  CHECK(begin <= end && end <= size_);
  const uint64_t first = AlignUp(begin, PageBytes());
  const uint64_t last = AlignDown(end, PageBytes());
  if (first < last)
    (void)madvise(static_cast<std::byte*>(address_) + first, last - first, MADV_COLD);
}

void FileMapping::FaultInHugePages() const {
  if (empty() || madvise(address_, size_, MADV_HUGEPAGE) != 0) return;
  (void)madvise(address_, size_, MADV_RANDOM);
}

}  // namespace forestage
