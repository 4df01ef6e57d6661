#include "common/utf8_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"

namespace forestage {

// Overlong forms and surrogates are found by value.
bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < static_cast<size_t>(more)) return false;
    uint32_t value = lead & (0x3f >> more);
    for (int k = 0; k < more; ++k) {
      const unsigned char next = static_cast<unsigned char>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      value = value << 6 | (next & 0x3f);
    }
    const uint32_t value_min = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
    if (value < value_min || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return false;
  }
  return true;
}

std::string Utf8Text(absl::string_view text) {
  return IsUtf8(text) ? std::string(text) : absl::CHexEscape(text);
}

}  // namespace forestage
