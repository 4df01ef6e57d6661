// File names and paths are any bytes; protocol buffers and JSON take UTF-8 only.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// Length of the UTF-8 character that `text` begins with; 0: it begins with none. Requires: `text`
// is not empty.
size_t Utf8CharacterBytes(absl::string_view text);

// Whether a protobuf string may hold it.
bool IsUtf8(absl::string_view text);

// The text itself where it is UTF-8, else with every byte that is not printable ASCII escaped, so
// that two different texts stay different.
std::string Utf8Text(absl::string_view text);

// The text on one line. Every control character ("\n", "\x1b") and every byte that is not UTF-8
// ("\xff") is escaped: what a terminal obeys, or cannot show. All else stays, backslashes, too.
std::string LineText(absl::string_view text);

// The same of a text of several lines: line breaks and tabs stay.
std::string LinesText(absl::string_view text);

}  // namespace forestage
