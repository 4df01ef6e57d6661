// Tensor and file names on one line of text, one word each.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// Percent-encodes (%0A) every byte of white space and control characters, Unicode's included, every
// byte that is not UTF-8 (%FF), and '%' itself; all else stays. So a name holds nothing that a line
// or a word could be split at, or that a terminal would obey, and any percent-decoder gives the
// name back. The empty name stays empty.
std::string EscapeName(absl::string_view name);

}  // namespace forestage
