// Real files for tests: of a known pattern, and cold.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "common/check.h"
#include "common/unique_fd.h"

namespace forestage {

inline UniqueFd OpenForTest(const std::string& path, int flags = O_RDONLY) {
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, 0644));
  CHECK(fd.valid());
  return fd;
}

inline void WriteFileForTest(const std::string& path, absl::Span<const std::byte> bytes) {
  const UniqueFd fd = OpenForTest(path, O_WRONLY | O_CREAT | O_TRUNC);
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    CHECK(written > 0);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

inline std::vector<std::byte> PatternForTest(uint64_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (uint64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<std::byte>(i * 7 + i / 4096);
  return pattern;
}

// Drops the file's pages [offset, offset + bytes) from the page cache; 0 bytes: to the end. Pages
// that somebody maps or is about to write stay.
inline void MakeColdForTest(const std::string& path, uint64_t offset = 0, uint64_t bytes = 0) {
  const UniqueFd fd = OpenForTest(path);
  CHECK(fsync(fd.get()) == 0);
  CHECK(posix_fadvise(fd.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      POSIX_FADV_DONTNEED) == 0);
}

// Brings the file's pages [offset, offset + bytes) into the page cache, and no others.
inline void WarmForTest(const std::string& path, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> buffer(bytes);
  const UniqueFd fd = OpenForTest(path);
  CHECK(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM) == 0);
  CHECK(pread(fd.get(), buffer.data(), bytes, static_cast<off_t>(offset)) ==
        static_cast<ssize_t>(bytes));
}

}  // namespace forestage
