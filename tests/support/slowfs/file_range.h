// A byte range of a file of the source directory.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// Bytes [begin, end) of the files that `name` names: a path relative to the source, a file's last
// component, or "*" for every file. With `pid` only what that process's threads read (0: anybody).
struct FileRange {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
  int pid = 0;

  // Whether a read of `size` bytes at `offset` by thread `reader` touches it. `reader` is looked up
  // in /proc only when `pid` is set. Thread-safe.
  bool Touches(absl::string_view path, uint64_t offset, uint64_t size, int reader) const;
};

}  // namespace forestage
