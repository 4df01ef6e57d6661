// Which extent is read next: the union of the sessions' demands.
//
// Each session has an ordered demand. Sessions are taken in turn, each in its own order, and no
// extent twice; urgent extents go before everything else, in the order in which they came. An
// extent is read as long as one session demands it.
//
//   kIdle --demanded--> kQueued --Take()--> kTaken --Finish()--> kResident or kFailed
//     ^                    |                   |                               |
//     +---nobody wants it--+                   +-- cancelled --> kIdle         |
//                       kQueued <------------demanded again--------------------+ (kFailed)
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "checkpoint/extent.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Extents [first, last).
struct ExtentRange {
  uint64_t first = 0;
  uint64_t last = 0;

  friend bool operator==(const ExtentRange&, const ExtentRange&) = default;
};

enum class ReadOutcome { kResident, kFailed, kCancelled };

// Not thread-safe. Memory: some bytes an extent, a bit an extent and session, and a range for each
// gap in a session's order.
class DemandQueue {
 public:
  // `extents` outlives the queue.
  explicit DemandQueue(const ExtentMap& extents);

  // Appends to the session's demand what it does not demand already; extents that failed are
  // queued again. Requires: the range is inside the map.
  void Add(SessionId session, ExtentRange range);
  // The session demands this extent, and it goes before everything else unless it is being read or
  // was. Requires: extent < extent_count.
  void AddUrgent(SessionId session, uint64_t extent);
  // Forgets the session. Gives back what was queued and nobody else demands, in order.
  std::vector<ExtentRange> RemoveSession(SessionId session);

  struct Taken {
    uint64_t extent = 0;
    ReadCause cause = ReadCause::kStage;

    friend bool operator==(const Taken&, const Taken&) = default;
  };
  // nullopt: nothing is queued.
  std::optional<Taken> Take();
  // Whether Take() would give one, and an urgent one.
  bool HasQueued() const { return queued_ > 0; }
  bool IsUrgent();
  // Requires: the extent was taken and not finished yet.
  void Finish(uint64_t extent, ReadOutcome outcome);

  // Of extents that a session demands.
  uint64_t wanted_bytes() const { return wanted_bytes_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t failed_bytes() const { return failed_bytes_; }

 private:
  enum class State : uint8_t { kIdle, kQueued, kTaken, kResident, kFailed };
  struct Demand {
    std::vector<bool> demanded;
    std::deque<ExtentRange> order;
  };

  Demand& DemandOf(SessionId session);
  // Marks the extent as demanded; true when it was thereby queued.
  bool Want(Demand& demand, uint64_t extent);
  void SetState(uint64_t extent, State state);
  // Adds the extent's bytes to the counter of its state, or takes them off.
  uint64_t* CounterOf(State state);
  std::optional<uint64_t> NextOf(Demand& demand);
  // Drops what is queued no more.
  void TrimUrgent();
  std::optional<uint64_t> NextUrgent();

  const ExtentMap& extents_;
  std::vector<State> states_;
  // How many sessions demand it.
  std::vector<uint32_t> demand_counts_;
  std::map<SessionId, Demand> demands_;
  // The first session that has not had its turn.
  SessionId next_turn_ = 0;
  std::deque<uint64_t> urgent_;
  // Whether it stands in urgent_, so that the queue cannot grow beyond the extents.
  std::vector<bool> is_urgent_;
  uint64_t queued_ = 0;
  uint64_t wanted_bytes_ = 0;
  uint64_t resident_bytes_ = 0;
  uint64_t failed_bytes_ = 0;
};

}  // namespace forestage
