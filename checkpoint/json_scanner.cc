#include "checkpoint/json_scanner.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

constexpr int32_t kDecimalExponentMax = std::numeric_limits<double>::max_exponent10;

// significand * 10 + digit does not fit 64 bits.
bool DigitOverflows(uint64_t significand, uint64_t digit) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return significand > kMax / 10 || (significand == kMax / 10 && digit > kMax % 10);
}

// 10^exponent as the nearest double. Requires: 0 <= exponent <= kDecimalExponentMax.
double PowerOfTen(int32_t exponent) {
  static const auto* const kPowers = [] {
    auto* powers = new std::array<double, kDecimalExponentMax + 1>;
    for (size_t i = 0; i < powers->size(); ++i) {
      const std::string text = absl::StrCat("1e", i);
      std::from_chars(text.data(), text.data() + text.size(), (*powers)[i]);
    }
    return powers;
  }();
  return (*kPowers)[static_cast<size_t>(exponent)];
}

// The reference refuses numbers that its (not exactly rounding) conversion makes infinite.
bool FitsDouble(uint64_t significand, int32_t exponent) {
  if (exponent <= 0 || significand == 0) return true;
  if (exponent > kDecimalExponentMax) return false;
  return !std::isinf(static_cast<double>(significand) * PowerOfTen(exponent));
}

int32_t AddSaturating(int32_t a, int32_t b) {
  const int64_t sum = int64_t{a} + b;
  if (sum > std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
  if (sum < std::numeric_limits<int32_t>::min()) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(sum);
}

// Bit 7 of each byte of `word` that ends a run of plain characters of a string: '"', '\\', and what
// is below 0x20. Bytes above the first such may be marked wrongly.
uint64_t StringStops(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kHighs = 0x8080808080808080;
  const auto zero_bytes = [](uint64_t x) { return (x - kOnes) & ~x; };
  const uint64_t below_space = (word - kOnes * 0x20) & ~word;
  return (zero_bytes(word ^ (kOnes * '"')) | zero_bytes(word ^ (kOnes * '\\')) | below_space) &
         kHighs;
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
  }
}

}  // namespace

bool JsonScanner::Fail(absl::string_view message) {
  if (error_.empty()) error_ = Here(message);
  return false;
}

std::string JsonScanner::Here(absl::string_view message) const {
  return absl::StrCat(message, " at byte ", position_, " of the JSON text");
}

bool JsonScanner::AtDigit() const {
  return position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9';
}

JsonScanner::Kind JsonScanner::Peek() {
  SkipSpace();
  if (position_ == text_.size()) return Kind::kNone;
  const char c = text_[position_];
  switch (c) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
      return Kind::kTrue;
    case 'f':
      return Kind::kFalse;
    case 'n':
      return Kind::kNull;
    default:
      return c == '-' || AtDigit() ? Kind::kNumber : Kind::kNone;
  }
}

bool JsonScanner::Enter(char opening, absl::string_view what) {
  SkipSpace();
  if (position_ == text_.size())
    return Fail(absl::StrCat("the text ends where ", what, " should be"));
  if (text_[position_] != opening) return Fail(absl::StrCat("expected ", what));
  if (depth_ == kJsonDepthMax) {
    return Fail(absl::StrCat("nested deeper than ", kJsonDepthMax, " objects and arrays"));
  }
  ++position_;
  ++depth_;
  fresh_.set(depth_);
  return true;
}

bool JsonScanner::BeginObject() { return Enter('{', "an object"); }

bool JsonScanner::BeginArray() { return Enter('[', "an array"); }

JsonScanner::Step JsonScanner::NextKey(absl::string_view* key) {
  SkipSpace();
  if (position_ == text_.size()) {
    Fail("the text ends inside an object");
    return Step::kError;
  }
  if (text_[position_] == '}') {
    ++position_;
    --depth_;
    return Step::kEnd;
  }
  if (!fresh_.test(depth_)) {
    if (text_[position_] != ',') {
      Fail("expected ',' or '}'");
      return Step::kError;
    }
    ++position_;
  }
  fresh_.reset(depth_);
  if (!ReadString(key)) return Step::kError;
  SkipSpace();
  if (position_ == text_.size() || text_[position_] != ':') {
    Fail("expected ':'");
    return Step::kError;
  }
  ++position_;
  return Step::kItem;
}

JsonScanner::Step JsonScanner::NextElement() {
  SkipSpace();
  if (position_ == text_.size()) {
    Fail("the text ends inside an array");
    return Step::kError;
  }
  if (text_[position_] == ']') {
    ++position_;
    --depth_;
    return Step::kEnd;
  }
  if (!fresh_.test(depth_)) {
    if (text_[position_] != ',') {
      Fail("expected ',' or ']'");
      return Step::kError;
    }
    ++position_;
  }
  fresh_.reset(depth_);
  // A value must follow; "[1,]" fails there, since ']' begins none.
  return Step::kItem;
}

void JsonScanner::SkipPlainCharacters() {
  static_assert(std::endian::native == std::endian::little);
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const __m128i last_control = _mm_set1_epi8(0x1f);
  while (text_.size() - position_ >= sizeof(__m128i)) {
    const __m128i characters =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(text_.data() + position_));
    // Unsigned: what is not above 0x1f is its own minimum with it.
    const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(characters, last_control), characters);
    const __m128i special =
        _mm_or_si128(_mm_cmpeq_epi8(characters, quote), _mm_cmpeq_epi8(characters, backslash));
    const int stops = _mm_movemask_epi8(_mm_or_si128(control, special));
    if (stops != 0) {
      position_ += static_cast<size_t>(std::countr_zero(static_cast<unsigned>(stops)));
      return;
    }
    position_ += sizeof(__m128i);
  }
#endif
  while (text_.size() - position_ >= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, text_.data() + position_, sizeof(word));
    if (const uint64_t stops = StringStops(word); stops != 0) {
      // A borrow only marks bytes above the first that stops.
      position_ += static_cast<size_t>(std::countr_zero(stops)) / 8;
      return;
    }
    position_ += sizeof(word);
  }
}

bool JsonScanner::ReadString(absl::string_view* value) {
  SkipSpace();
  if (position_ == text_.size() || text_[position_] != '"') return Fail("expected a string");
  ++position_;
  size_t piece_begin = position_;
  bool has_escapes = false;
  while (SkipPlainCharacters(), position_ < text_.size()) {
    const unsigned char c = static_cast<unsigned char>(text_[position_]);
    if (c == '"') {
      const absl::string_view piece = text_.substr(piece_begin, position_ - piece_begin);
      ++position_;
      if (has_escapes) unescaped_.append(piece.data(), piece.size());
      *value = has_escapes ? absl::string_view(unescaped_) : piece;
      return true;
    }
    if (c < 0x20) return Fail("a control character inside a string");
    if (c == '\\') {
      if (!has_escapes) unescaped_.clear();
      has_escapes = true;
      unescaped_.append(text_.data() + piece_begin, position_ - piece_begin);
      if (!ReadEscape()) return false;
      piece_begin = position_;
    } else {
      ++position_;
    }
  }
  return Fail("the text ends inside a string");
}

bool JsonScanner::SkipString(absl::string_view plain) {
  SkipSpace();
  const size_t end = position_ + 1 + plain.size();
  if (end >= text_.size() || text_[position_] != '"' || text_[end] != '"' ||
      std::memcmp(text_.data() + position_ + 1, plain.data(), plain.size()) != 0) {
    return false;
  }
  position_ = end + 1;
  return true;
}

bool JsonScanner::ReadEscape() {
  ++position_;  // the backslash
  if (position_ == text_.size()) return Fail("the text ends inside a string");
  const char c = text_[position_++];
  switch (c) {
    case '"':
    case '\\':
    case '/':
      unescaped_.push_back(c);
      return true;
    case 'b':
      unescaped_.push_back('\b');
      return true;
    case 'f':
      unescaped_.push_back('\f');
      return true;
    case 'n':
      unescaped_.push_back('\n');
      return true;
    case 'r':
      unescaped_.push_back('\r');
      return true;
    case 't':
      unescaped_.push_back('\t');
      return true;
    case 'u':
      return ReadUnicodeEscape();
    default:
      return Fail("an unknown escape in a string");
  }
}

bool JsonScanner::ReadHexQuad(uint32_t* unit) {
  if (text_.size() - position_ < 4) return Fail("the text ends inside a \\u escape");
  *unit = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[position_];
    uint32_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A' + 10);
    } else {
      return Fail("not a hexadecimal digit in a \\u escape");
    }
    *unit = *unit * 16 + digit;
    ++position_;
  }
  return true;
}

bool JsonScanner::ReadUnicodeEscape() {
  uint32_t unit;
  if (!ReadHexQuad(&unit)) return false;
  if (unit >= 0xDC00 && unit <= 0xDFFF) return Fail("a trailing surrogate without a leading one");
  if (unit >= 0xD800 && unit <= 0xDBFF) {
    if (text_.size() - position_ < 2 || text_[position_] != '\\' || text_[position_ + 1] != 'u') {
      return Fail("a leading surrogate without a trailing one");
    }
    position_ += 2;
    uint32_t trailing;
    if (!ReadHexQuad(&trailing)) return false;
    if (trailing < 0xDC00 || trailing > 0xDFFF) {
      return Fail("a leading surrogate without a trailing one");
    }
    unit = 0x10000 + ((unit - 0xD800) << 10) + (trailing - 0xDC00);
  }
  AppendUtf8(unit, &unescaped_);
  return true;
}

bool JsonScanner::ReadLiteral(absl::string_view literal) {
  if (text_.substr(position_, literal.size()) != literal) {
    return Fail(absl::StrCat("expected ", literal));
  }
  position_ += literal.size();
  return true;
}

bool JsonScanner::ReadNull() {
  if (Peek() != Kind::kNull) return Fail("expected null");
  return ReadLiteral("null");
}

bool JsonScanner::ReadFraction(uint64_t* significand, int32_t* exponent) {
  ++position_;  // the point
  if (!AtDigit()) return Fail("a number without digits after its point");
  // Digits beyond 64 bits of significand are dropped, here and in the integral part.
  bool full = false;
  for (; AtDigit(); ++position_) {
    const uint64_t digit = static_cast<uint64_t>(text_[position_] - '0');
    full = full || DigitOverflows(*significand, digit);
    if (full) continue;
    *significand = *significand * 10 + digit;
    --*exponent;
  }
  return true;
}

bool JsonScanner::ReadExponent(uint64_t significand, int32_t* exponent) {
  ++position_;  // the e
  bool negative = false;
  if (position_ < text_.size() && (text_[position_] == '+' || text_[position_] == '-')) {
    negative = text_[position_] == '-';
    ++position_;
  }
  if (!AtDigit()) return Fail("a number without digits in its exponent");
  int64_t value = 0;
  bool huge = false;
  for (; AtDigit(); ++position_) {
    value = value * 10 + (text_[position_] - '0');
    if (value > std::numeric_limits<int32_t>::max()) {
      huge = true;
      value = std::numeric_limits<int32_t>::max();
    }
  }
  if (huge) {
    if (significand != 0 && !negative) return Fail("a number beyond the range of a double");
    *exponent = std::numeric_limits<int32_t>::min();
    return true;
  }
  *exponent = AddSaturating(*exponent, static_cast<int32_t>(negative ? -value : value));
  return true;
}

JsonScanner::Number JsonScanner::ReadNumber(uint64_t* value) {
  const bool negative = text_[position_] == '-';
  if (negative) ++position_;
  if (!AtDigit()) {
    Fail("a minus sign without digits");
    return Number::kError;
  }
  uint64_t significand = 0;
  int32_t exponent = 0;
  bool is_integer = !negative;
  bool full = false;
  const size_t digits_begin = position_;
  for (; AtDigit(); ++position_) {
    const uint64_t digit = static_cast<uint64_t>(text_[position_] - '0');
    full = full || DigitOverflows(significand, digit);
    if (full) {
      ++exponent;
    } else {
      significand = significand * 10 + digit;
    }
  }
  if (text_[digits_begin] == '0' && position_ - digits_begin > 1) {
    Fail("a number with a leading zero");
    return Number::kError;
  }
  if (full) is_integer = false;
  if (position_ < text_.size() && text_[position_] == '.') {
    is_integer = false;
    if (!ReadFraction(&significand, &exponent)) return Number::kError;
  }
  if (position_ < text_.size() && (text_[position_] == 'e' || text_[position_] == 'E')) {
    is_integer = false;
    if (!ReadExponent(significand, &exponent)) return Number::kError;
  }
  if (!FitsDouble(significand, exponent)) {
    Fail("a number beyond the range of a double");
    return Number::kError;
  }
  *value = significand;
  return is_integer ? Number::kUnsigned : Number::kOther;
}

bool JsonScanner::ReadUnsigned(uint64_t* value) {
  constexpr absl::string_view kExpected = "expected an integer of 0 to 2^64 - 1";
  if (Peek() != Kind::kNumber) return Fail(kExpected);
  const size_t begin = position_;
  switch (ReadNumber(value)) {
    case Number::kError:
      return false;
    case Number::kOther:
      position_ = begin;
      return Fail(kExpected);
    case Number::kUnsigned:
      return true;
  }
  return false;
}

bool JsonScanner::SkipValue() {
  absl::string_view ignored_text;
  uint64_t ignored_number;
  Step step;
  switch (Peek()) {
    case Kind::kObject:
      if (!BeginObject()) return false;
      while ((step = NextKey(&ignored_text)) == Step::kItem) {
        if (!SkipValue()) return false;
      }
      return step == Step::kEnd;
    case Kind::kArray:
      if (!BeginArray()) return false;
      while ((step = NextElement()) == Step::kItem) {
        if (!SkipValue()) return false;
      }
      return step == Step::kEnd;
    case Kind::kString:
      return ReadString(&ignored_text);
    case Kind::kNumber:
      return ReadNumber(&ignored_number) != Number::kError;
    case Kind::kTrue:
      return ReadLiteral("true");
    case Kind::kFalse:
      return ReadLiteral("false");
    case Kind::kNull:
      return ReadNull();
    case Kind::kNone:
      break;
  }
  return Fail("expected a value");
}

bool JsonScanner::ReadEnd() {
  SkipSpace();
  if (position_ != text_.size()) return Fail("something follows the end");
  return true;
}

}  // namespace forestage
