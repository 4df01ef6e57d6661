#include "daemon/storage/read_rate_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "common/units.h"

namespace forestage {
namespace {

constexpr absl::string_view kNoneText = "none";

std::optional<uint64_t> ParseLimit(absl::string_view text) {
  if (text == kNoneText) return ReadRateLimits::kNone;
  const absl::StatusOr<uint64_t> bytes = ParseByteSize(text);
  if (!bytes.ok() || *bytes == 0) return std::nullopt;
  return *bytes;
}

std::string FormatLimit(uint64_t bytes) {
  return bytes == ReadRateLimits::kNone ? std::string(kNoneText) : FormatByteSize(bytes);
}

bool IsTypeName(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

std::optional<ReadRateLimits> ReadRateLimits::Parse(absl::string_view text) {
  ReadRateLimits limits;
  bool others_given = false;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const std::optional<uint64_t> limit = ParseLimit(words.back());
    if (!limit.has_value()) return std::nullopt;
    if (words.size() == 1) {
      if (std::exchange(others_given, true)) return std::nullopt;
      limits.others_ = *limit;
    } else if (!IsTypeName(words[0]) ||
               !limits.by_type_.emplace(std::string(words[0]), *limit).second) {
      return std::nullopt;
    }
  }
  return limits;
}

uint64_t ReadRateLimits::Of(absl::string_view type) const {
  // NFS has another name for each of its versions, or none where the daemon cannot see the mount.
  for (const absl::string_view name :
       {type, type.substr(0, type.find('.')), type == "nfs4" ? absl::string_view("nfs") : type}) {
    const auto found = by_type_.find(std::string(name));
    if (found != by_type_.end()) return found->second;
  }
  return others_;
}

uint64_t ReadRateLimits::Smallest() const {
  uint64_t smallest = others_;
  for (const auto& [type, limit] : by_type_) {
    if (limit != kNone && (smallest == kNone || limit < smallest)) smallest = limit;
  }
  return smallest;
}

std::string ReadRateLimits::ToString() const {
  std::string text = absl::StrJoin(by_type_, ",", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, "=", FormatLimit(entry.second));
  });
  if (!text.empty() && others_ == kNone) return text;
  return absl::StrCat(text, text.empty() ? "" : ",", FormatLimit(others_));
}

}  // namespace forestage
