// What became of a file since it was looked at, in words.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// How a file looked at some time. Whoever does not look at a member leaves it the same in both.
struct FileStamp {
  // Both 0 where it does not matter which file it is, since it is open.
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  // Names of the file in its file system; 0: it is open only.
  uint64_t links = 1;
};

// "it has 5 bytes now and had 9". Says the most telling of what differs; empty when nothing does.
std::string FileChangeText(const FileStamp& then, const FileStamp& now);

// The message of an error about a file that was changed since `since` ("it was opened"): `path`,
// that it was changed, how, and `advice`. Requires: something differs.
std::string FileChangedMessage(absl::string_view path, absl::string_view since,
                               const FileStamp& then, const FileStamp& now,
                               absl::string_view advice);

}  // namespace forestage
