#include "common/utf8_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

// A character of ASCII's or Unicode's (U+0080 to U+009F) first controls, or DEL.
bool IsControl(absl::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

void AppendEscaped(char byte, std::string& escaped) {
  switch (byte) {
    case '\n':
      escaped += "\\n";
      return;
    case '\r':
      escaped += "\\r";
      return;
    case '\t':
      escaped += "\\t";
      return;
    default:
      absl::StrAppend(&escaped, "\\x",
                      absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  }
}

std::string EscapeControls(absl::string_view text, absl::string_view kept) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    const absl::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    const bool plain = bytes > 0 && !IsControl(character);
    if (plain || kept.find(character) != absl::string_view::npos) {
      escaped.append(character.data(), character.size());
    } else {
      for (const char byte : character) AppendEscaped(byte, escaped);
    }
    text.remove_prefix(character.size());
  }
  return escaped;
}

}  // namespace

// Overlong forms and surrogates are found by value.
size_t Utf8CharacterBytes(absl::string_view text) {
  const unsigned char lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  if (lead < 0xc2 || lead > 0xf4 || text.size() - 1 < more) return 0;
  uint32_t value = lead & (0x3f >> more);
  for (size_t i = 1; i <= more; ++i) {
    const unsigned char next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    value = value << 6 | (next & 0x3f);
  }
  const uint32_t value_min = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
  if (value < value_min || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return 0;
  return more + 1;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string Utf8Text(absl::string_view text) {
  return IsUtf8(text) ? std::string(text) : absl::CHexEscape(text);
}

std::string LineText(absl::string_view text) { return EscapeControls(text, ""); }

std::string LinesText(absl::string_view text) { return EscapeControls(text, "\n\t"); }

}  // namespace forestage
