// When a checkpoint is read for those only who wait for it, since ranks open their sessions.
//
// Where a process of this node serves the storage, whatever is read takes processors from ranks
// that open, and they are the ones who wait. The hold is short, and seldom: who opens again and
// again, or never gets anything, holds nobody up for long.
#pragma once

#include <set>

#include "absl/time/time.h"

#include "daemon/limits.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Not thread-safe. `now` never goes back.
class ReadAheadHold {
 public:
  explicit ReadAheadHold(absl::Duration longest = kReadAheadHoldMax) : longest_(longest) {}

  // The session opens. Begins a hold, unless one has ended just now: for kReadAheadHoldRest times
  // as long as that lasted there is none.
  void Begin(SessionId session, absl::Time now);
  // The session has what it came for, or has gone. True: the hold ends with that.
  bool End(SessionId session, absl::Time now);

  bool holds(absl::Time now) const { return !sessions_.empty() && now < ends_at_; }
  // When it ends, whoever opens. InfiniteFuture: it does not hold.
  absl::Time EndsAt(absl::Time now) const { return holds(now) ? ends_at_ : absl::InfiniteFuture(); }

 private:
  // Constant after construction.
  const absl::Duration longest_;

  std::set<SessionId> sessions_;
  absl::Time begun_at_ = absl::InfinitePast();
  absl::Time ends_at_ = absl::InfinitePast();
  absl::Time next_from_ = absl::InfinitePast();
};

}  // namespace forestage
