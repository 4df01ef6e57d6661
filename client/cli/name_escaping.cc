#include "client/cli/name_escaping.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

#include "common/utf8_text.h"

namespace forestage {
namespace {

// Length in bytes of the white space, control character or broken UTF-8 that `rest` begins with,
// else 0.
size_t UnsafeCharacterBytes(absl::string_view rest) {
  const auto first = static_cast<uint8_t>(rest[0]);
  if (first <= 0x20 || first == 0x7f || first == '%') return 1;
  if (Utf8CharacterBytes(rest) == 0) return 1;
  const auto second = rest.size() > 1 ? static_cast<uint8_t>(rest[1]) : uint8_t{0};
  // U+0080 .. U+00A0: the C1 controls and the no-break space.
  if (first == 0xc2 && second >= 0x80 && second <= 0xa0) return 2;
  const auto third = rest.size() > 2 ? static_cast<uint8_t>(rest[2]) : uint8_t{0};
  if (first == 0xe2 && second == 0x80) {
    const bool space = third >= 0x80 && third <= 0x8f;      // U+2000 .. U+200F, with the marks
    const bool separator = third >= 0xa8 && third <= 0xaf;  // U+2028 .. U+202F
    if (space || separator) return 3;
  }
  for (absl::string_view other : {"\xe1\x9a\x80", "\xe2\x81\x9f", "\xe3\x80\x80", "\xef\xbb\xbf"}) {
    if (absl::StartsWith(rest, other)) return 3;
  }
  return 0;
}

}  // namespace

std::string EscapeName(absl::string_view name) {
  std::string escaped;
  escaped.reserve(name.size());
  while (!name.empty()) {
    const size_t unsafe = UnsafeCharacterBytes(name);
    if (unsafe == 0) {
      const size_t safe = Utf8CharacterBytes(name);
      escaped.append(name.data(), safe);
      name.remove_prefix(safe);
      continue;
    }
    for (char byte : name.substr(0, unsafe))
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<uint8_t>(byte));
    name.remove_prefix(unsafe);
  }
  return escaped;
}

}  // namespace forestage
