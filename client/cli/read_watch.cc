#include "client/cli/read_watch.h"

#include "absl/strings/str_cat.h"
#include "client/cli/name_escaping.h"
#include "client/cli/stall_watch.h"

namespace forestage {

std::string ReadWatch::KeyOf(const ReadPlace& place) {
  return absl::StrCat(place.waits_for_daemon ? 1 : 0, " ", place.offset, " ", place.file);
}

std::optional<ReadPlace> ReadWatch::Look(const std::vector<ReadPlace>& places, absl::Time now) {
  std::map<std::string, Seen> seen;
  std::optional<ReadPlace> stuck;
  for (const ReadPlace& place : places) {
    const std::string key = KeyOf(place);
    const auto before = seen_.find(key);
    Seen& entry = seen[key];
    entry = before == seen_.end() ? Seen{.since = now, .told = false} : before->second;
    if (entry.told || stuck.has_value() || now - entry.since < kStallPatience) continue;
    entry.told = true;
    stuck = place;
  }
  seen_ = std::move(seen);
  return stuck;
}

std::string ReadPlaceText(const ReadPlace& place) {
  return absl::StrCat(place.waits_for_daemon ? "the daemon's read of " : "own read of ",
                      EscapeName(place.file), " at offset ", place.offset);
}

}  // namespace forestage
