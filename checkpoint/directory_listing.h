// What a directory holds, without opening anything in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

enum class FileKind {
  kRegular,
  kDirectory,
  kFifo,
  kSocket,
  kDevice,
  // Does not exist.
  kMissing,
  // A symbolic link whose target is missing, or that leads in a circle.
  kDangling,
  // Exists, but cannot be looked at: see FileLook::error_number.
  kUnknown,
};
// "a FIFO".
absl::string_view FileKindName(FileKind kind);

// A file after all links.
struct FileLook {
  FileKind kind = FileKind::kMissing;
  // Of a dangling link, as it stands in the link.
  std::string target;
  int error_number = 0;
};

// "a link to 'x', which does not exist", for a dangling link that was looked at.
std::string DanglingText(const FileLook& look);

// Follows links. Blocks on the file system.
FileLook LookAt(const std::string& path);

// The names in a directory, in no order, without "." and "..". NOT_FOUND, PERMISSION_DENIED, ... as
// the system said; INVALID_ARGUMENT for what is not a directory. Blocks on the file system.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& directory);

}  // namespace forestage
