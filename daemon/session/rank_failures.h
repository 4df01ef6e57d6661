// Ranks that could not take part in their strict groups, for ranks of those groups that open a
// moment later: a group is forgotten with its last session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <tuple>

#include "absl/time/time.h"

#include "daemon/session/group.h"

namespace forestage {

// Keeps kRankFailuresMax, each for kRankFailureKept. Not thread-safe.
class RankFailures {
 public:
  // Group name, launch nonce, path.
  using GroupKey = std::tuple<std::string, std::string, std::string>;

  // Takes the place of what is known of this group.
  void Add(const GroupKey& group, uint32_t local_size, RankFailure failure, absl::Time now);
  // Why the group that this member founds has no chance. What failed as the same rank is forgotten:
  // it tries again, so this is another launch.
  std::optional<RankFailure> TakeFor(const GroupKey& group, const GroupMember& founder,
                                     absl::Time now);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    GroupKey group;
    uint32_t local_size = 0;
    RankFailure failure;
    absl::Time until;
  };
  // Oldest first.
  std::deque<Entry> entries_;
};

}  // namespace forestage
