#include "daemon/memory/memory_headroom.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kAutoBytesMin = kGiB;
constexpr uint64_t kAutoBytesMax = 16 * kGiB;
constexpr uint64_t kAutoShare = 10;
// Of a small limit the least headroom would leave nothing.
constexpr uint64_t kAutoShareMost = 2;
constexpr uint64_t kPercentMax = 90;

}  // namespace

std::optional<MemoryHeadroom> MemoryHeadroom::Parse(absl::string_view text) {
  if (text == "auto") return MemoryHeadroom();
  if (absl::ConsumeSuffix(&text, "%")) {
    uint64_t percent = 0;
    if (text.find_first_not_of("0123456789") != absl::string_view::npos ||
        !absl::SimpleAtoi(text, &percent) || percent > kPercentMax) {
      return std::nullopt;
    }
    return MemoryHeadroom(Kind::kPercent, percent);
  }
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) return std::nullopt;
  return MemoryHeadroom(Kind::kBytes, *bytes);
}

uint64_t MemoryHeadroom::BytesOf(uint64_t limit_bytes) const {
  switch (kind_) {
    case Kind::kBytes:
      return value_;
    case Kind::kPercent:
      return limit_bytes / 100 * value_ + limit_bytes % 100 * value_ / 100;
    case Kind::kAuto:
      break;
  }
  return std::min(std::clamp(limit_bytes / kAutoShare, kAutoBytesMin, kAutoBytesMax),
                  limit_bytes / kAutoShareMost);
}

std::string MemoryHeadroom::ToString() const {
  switch (kind_) {
    case Kind::kBytes:
      return FormatByteSize(value_);
    case Kind::kPercent:
      return absl::StrCat(value_, "%");
    case Kind::kAuto:
      break;
  }
  return "auto";
}

}  // namespace forestage
