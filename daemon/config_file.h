// The daemon's configuration file as text: lines `name = value`. What names and values mean is
// daemon/config.cc's. The format is described in docs/configuration.md.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

struct ConfigFileEntry {
  // As in the file, not empty.
  std::string name;
  // Without quotes.
  std::string value;
  // From 1.
  size_t line = 0;
  // It stands behind a line that is no section of ours, of which there is an error already.
  bool in_section = false;
};

struct ConfigFileText {
  std::vector<ConfigFileEntry> entries;
  // All that is wrong, in the order of the file, "line 3: ..." each; a name that is given twice is.
  std::vector<std::string> errors;
};

// Any bytes may come.
ConfigFileText ParseConfigFile(absl::string_view text);

// `value` as ParseConfigFile reads it: in quotes.
std::string QuoteConfigValue(absl::string_view value);

// The bytes of a regular file, or none of /dev/null. Never waits for a FIFO or a device. NOT_FOUND:
// there is none; INVALID_ARGUMENT: it is no regular file, or a too large one; others as
// ErrnoStatus.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

}  // namespace forestage
