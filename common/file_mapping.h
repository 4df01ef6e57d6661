// Owner of a read-only or shared mapping of a file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace forestage {

// Unmaps when it goes. Movable. The mapped bytes may be read from any thread; touching a page that
// lies beyond the end of a file that was truncated, or that cannot be read, raises SIGBUS, so
// callers Populate() first.
class FileMapping {
 public:
  FileMapping() = default;
  // Maps `bytes` bytes from offset 0, shared. Zero bytes make an empty mapping without a system
  // call. Fails with the errno of mmap (ENODEV: the file system refuses mappings).
  static absl::StatusOr<FileMapping> MapReadOnly(int fd, uint64_t bytes);
  static absl::StatusOr<FileMapping> MapReadWrite(int fd, uint64_t bytes);

  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  absl::Span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(address_), size_};
  }
  // Requires: made by MapReadWrite.
  absl::Span<std::byte> writable_bytes() const {
    return {static_cast<std::byte*>(address_), size_};
  }
  bool empty() const { return size_ == 0; }

  // Makes the pages of [begin, end) present in this process's page tables, reading what is missing
  // (MADV_POPULATE_READ). Blocks while the device reads. A page that cannot be read is an error
  // with errno EFAULT, never a signal; EINVAL on kernels before 5.14.
  // Requires: begin <= end <= bytes().size().
  absl::Status PopulateRead(uint64_t begin, uint64_t end) const;

  // When memory is short, the pages that lie wholly in [begin, end) are the first to go, although
  // this process has just used them (MADV_COLD). They stay mapped, and what other processes have
  // mapped too is left as it is.
  // Requires: begin <= end <= bytes().size().
  void LetGo(uint64_t begin, uint64_t end) const;

  // From now on a fault on a page that is not cached reads the whole aligned huge page around it
  // (MADV_HUGEPAGE; Linux 5.18) and nothing beyond it, and a fault on a cached page reads nothing
  // (MADV_RANDOM). Does nothing where the kernel has no huge pages. Older kernels, and file systems
  // that take faults in their own way, then read single pages: see whether it works before many
  // faults are taken.
  void FaultInHugePages() const;

 private:
  FileMapping(void* address, size_t size) : address_(address), size_(size) {}
  static absl::StatusOr<FileMapping> Map(int fd, uint64_t bytes, int protection);
  void Unmap();

  void* address_ = nullptr;
  size_t size_ = 0;
};

}  // namespace forestage
