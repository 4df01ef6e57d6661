#include "daemon/memory/memory_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/units.h"

namespace forestage {
namespace {

// Version 1 rounds 2^63 - 1 down to a page, whose size differs between machines.
constexpr uint64_t kLimitOfVersion1IsNone = uint64_t{1} << 62;

// Digits only: absl also takes a sign and blanks.
std::optional<uint64_t> ParseDigits(absl::string_view text) {
  uint64_t number = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(text, &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

std::optional<uint64_t> MeminfoBytes(absl::string_view meminfo, absl::string_view row) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    if (!absl::ConsumePrefix(&line, row) || !absl::ConsumePrefix(&line, ":")) continue;
    if (!absl::ConsumeSuffix(&line, " kB")) return std::nullopt;
    const std::optional<uint64_t> kib = ParseDigits(absl::StripLeadingAsciiWhitespace(line));
    if (!kib.has_value() || *kib > kNoMemoryLimit / kKiB) return std::nullopt;
    return *kib * kKiB;
  }
  return std::nullopt;
}

std::optional<uint64_t> ParseMemoryCounter(absl::string_view text) {
  absl::ConsumeSuffix(&text, "\n");
  return ParseDigits(text);
}

std::optional<uint64_t> ParseMemoryLimit(absl::string_view text) {
  absl::ConsumeSuffix(&text, "\n");
  if (text == "max") return kNoMemoryLimit;
  const std::optional<uint64_t> limit = ParseDigits(text);
  if (limit.has_value() && *limit >= kLimitOfVersion1IsNone) return kNoMemoryLimit;
  return limit;
}

std::optional<uint64_t> MemoryStatBytes(absl::string_view memory_stat, absl::string_view row) {
  for (absl::string_view line : absl::StrSplit(memory_stat, '\n')) {
    if (absl::ConsumePrefix(&line, row) && absl::ConsumePrefix(&line, " ")) {
      return ParseDigits(line);
    }
  }
  return std::nullopt;
}

}  // namespace forestage
