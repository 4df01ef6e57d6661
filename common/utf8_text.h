// File names and paths are any bytes; protocol buffers and JSON take UTF-8 only.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// Whether a protobuf string may hold it.
bool IsUtf8(absl::string_view text);

// The text itself where it is UTF-8, else with every byte that is not printable ASCII escaped, so
// that two different texts stay different.
std::string Utf8Text(absl::string_view text);

}  // namespace forestage
