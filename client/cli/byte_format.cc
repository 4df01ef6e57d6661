#include "client/cli/byte_format.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace forestage {
namespace {

struct Unit {
  absl::string_view name;
  uint64_t bytes;
};
constexpr uint64_t kThousand = 1000;
constexpr std::array<Unit, 14> kUnits = {{
    {"", 1},
    {"b", 1},
    {"k", 1ull << 10},
    {"kib", 1ull << 10},
    {"kb", kThousand},
    {"m", 1ull << 20},
    {"mib", 1ull << 20},
    {"mb", kThousand* kThousand},
    {"g", 1ull << 30},
    {"gib", 1ull << 30},
    {"gb", kThousand* kThousand* kThousand},
    {"t", 1ull << 40},
    {"tib", 1ull << 40},
    {"tb", kThousand* kThousand* kThousand* kThousand},
}};

// Above this a size is a slip of the hand, and a double still counts bytes exactly below it.
constexpr double kParsedBytesMax = 9007199254740992.0;

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr std::array<absl::string_view, 6> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be printed as "1024".
  while (value >= 999.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, value, kNames[unit]);
}

std::string FormatCount(uint64_t count, absl::string_view singular) {
  return absl::StrCat(count, " ", singular, count == 1 ? "" : "s");
}

std::string FormatSeconds(double seconds) {
  if (!(seconds > 0)) seconds = 0;
  if (seconds < 9.9995) return absl::StrFormat("%.3f s", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  if (!(seconds < 1e9)) return "very long";
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < trimmed.size() &&
         (absl::ascii_isdigit(trimmed[digits]) || trimmed[digits] == '.'))
    ++digits;
  const std::string unit_name =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  double number = 0;
  if (digits > 0 && absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    for (const Unit& unit : kUnits) {
      if (unit.name != unit_name) continue;
      const double bytes = number * static_cast<double>(unit.bytes);
      if (bytes < kParsedBytesMax) return static_cast<uint64_t>(std::llround(bytes));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a size; write a number and a unit, like 512MiB, 1GiB or 1.5GB"));
}

}  // namespace forestage
