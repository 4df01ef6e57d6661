// A pull scanner of JSON that accepts exactly what the parser of the reference reader accepts.
//
// General JSON libraries differ from it in what they take: nesting, lone surrogates, numbers
// beyond a double, -0, byte order marks, content behind the end. Two readers that disagree about
// one file are a hole, so the grammar stands here, in one pass, without a tree in memory.
// docs/safetensors_rules.md names the differences.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// Objects and arrays inside each other; one more is an error, as in the reference.
inline constexpr size_t kJsonDepthMax = 127;

// Reads `text`, which outlives it and is valid UTF-8 (checked by the caller: the reference has
// another error for it). Every method that returns bool or kError has failed for good: error()
// says why and where. Not thread-safe.
class JsonScanner {
 public:
  enum class Kind { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull, kNone };
  enum class Step { kItem, kEnd, kError };

  explicit JsonScanner(absl::string_view text) : text_(text) {}

  // What the next value looks like by its first character; kNone for what begins no value.
  Kind Peek();

  // Enters an object; then NextKey() until kEnd. After kItem exactly one value must be read.
  bool BeginObject();
  // `key` is valid until the next string is read.
  Step NextKey(absl::string_view* key);
  // Enters an array; then NextElement() until kEnd. After kItem exactly one value must be read.
  bool BeginArray();
  Step NextElement();

  // `value` is valid until the next string is read.
  bool ReadString(absl::string_view* value);
  // Reads the next string where that is `plain`, which an earlier ReadString gave without escapes;
  // otherwise false, and nothing is read. Cheaper than to read it.
  bool SkipString(absl::string_view plain);
  // A number without sign, fraction and exponent that fits 64 bits; anything else fails.
  bool ReadUnsigned(uint64_t* value);
  bool ReadNull();
  // Any value, checked as strictly as if it were used.
  bool SkipValue();
  // Nothing but white space is left.
  bool ReadEnd();

  // Fails with a message of the caller's, at the present place.
  bool Fail(absl::string_view message);
  // A message with that place, without failing.
  std::string Here(absl::string_view message) const;
  // "expected ':' at byte 17 of the text".
  const std::string& error() const { return error_; }

 private:
  enum class Number { kError, kUnsigned, kOther };

  void SkipSpace() {
    while (position_ < text_.size()) {
      const char c = text_[position_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++position_;
    }
  }
  // Inside a string: stands at the first '"', '\\' or control character afterwards, or before the
  // last few bytes of the text.
  void SkipPlainCharacters();
  bool Enter(char opening, absl::string_view what);
  bool ReadEscape();
  bool ReadHexQuad(uint32_t* unit);
  bool ReadUnicodeEscape();
  bool ReadLiteral(absl::string_view literal);
  // Scans a number as the reference does, including what it calls out of range.
  Number ReadNumber(uint64_t* value);
  bool ReadFraction(uint64_t* significand, int32_t* exponent);
  bool ReadExponent(uint64_t significand, int32_t* exponent);
  bool AtDigit() const;

  const absl::string_view text_;
  size_t position_ = 0;
  size_t depth_ = 0;
  // By depth: nothing has been read of this object or array yet.
  std::bitset<kJsonDepthMax + 1> fresh_;
  // The last string that had escapes.
  std::string unescaped_;
  std::string error_;
};

}  // namespace forestage
