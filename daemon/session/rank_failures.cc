#include "daemon/session/rank_failures.h"

#include <algorithm>
#include <utility>

#include "daemon/limits.h"

namespace forestage {

void RankFailures::Add(const GroupKey& group, uint32_t local_size, RankFailure failure,
                       absl::Time now) {
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.until <= now || entry.group == group; });
  if (entries_.size() == kRankFailuresMax) entries_.pop_front();
  failure.why.resize(std::min(failure.why.size(), kRankFailureBytesMax));
  entries_.push_back({.group = group,
                      .local_size = local_size,
                      .failure = std::move(failure),
                      .until = now + kRankFailureKept});
}

std::optional<RankFailure> RankFailures::TakeFor(const GroupKey& group, const GroupMember& founder,
                                                 absl::Time now) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.group == group; });
  if (found == entries_.end() || found->until <= now || found->local_size != founder.local_size) {
    return std::nullopt;
  }
  if (found->failure.local_rank != founder.local_rank) return found->failure;
  entries_.erase(found);
  return std::nullopt;
}

}  // namespace forestage
