#include "common/units.h"

#include <unistd.h>

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace forestage {
namespace {

// Largest first.
constexpr std::pair<absl::string_view, uint64_t> kByteUnits[] = {
    {"TiB", kTiB}, {"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}};

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  absl::string_view digits = text;
  uint64_t unit = 1;
  for (const auto& [suffix, bytes] : kByteUnits) {
    if (absl::ConsumeSuffix(&digits, suffix)) {
      unit = bytes;
      break;
    }
  }
  uint64_t count = 0;
  // SimpleAtoi allows white space and signs around the number.
  if (digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &count)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a size such as 65536, 64KiB, 8MiB or 1GiB"));
  }
  if (count > std::numeric_limits<uint64_t>::max() / unit) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is too large"));
  }
  return count * unit;
}

std::string FormatByteSize(uint64_t bytes) {
  for (const auto& [suffix, unit] : kByteUnits) {
    if (bytes != 0 && bytes % unit == 0) return absl::StrCat(bytes / unit, suffix);
  }
  return absl::StrCat(bytes);
}

uint64_t PageBytes() {
  static const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return page_bytes;
}

}  // namespace forestage
