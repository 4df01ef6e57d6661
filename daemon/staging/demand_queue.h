// Which extent is read next: the union of the sessions' demands.
//
// Each session has an ordered demand of extents and parts of extents. Sessions are taken in turn,
// each in its own order, and no byte twice; urgent extents go before everything else, in the order
// in which they came. What is demanded of an extent is read at once, when its first turn comes.
//
//   kIdle --demanded--> kQueued --Take()--> kTaken --Finish()--> kResident or kFailed
//     ^                    |                   |                               |
//     +---nobody wants it--+                   +-- cancelled --> kIdle         |
//                       kQueued <------------demanded again--------------------+ (kFailed)
//                               <----more of it is demanded--------------------+ (kResident)
//
// kResident: all that anybody demands of it, and has demanded while it was read, was brought in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"

#include "checkpoint/extent.h"
#include "daemon/staging/extent_parts.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Extents [first, last).
struct ExtentRange {
  uint64_t first = 0;
  uint64_t last = 0;

  friend bool operator==(const ExtentRange&, const ExtentRange&) = default;
};

enum class ReadOutcome {
  kResident,     // what was to be read
  kAllResident,  // the whole extent, also what nobody demands
  kFailed,
  kCancelled,
};

// Not thread-safe. Memory: some bytes an extent, a bit an extent and session, a range for each gap
// in a session's order, and at most kPartsPerExtentMax ranges for an extent that a session demands
// in part.
class DemandQueue {
 public:
  // `extents` outlives the queue.
  explicit DemandQueue(const ExtentMap& extents);

  // Appends to the session's demand what it does not demand already; extents that failed are
  // queued again. Gives those that were not queued before, in order. Requires: the range is inside
  // the map.
  std::vector<ExtentRange> Add(SessionId session, ExtentRange range);
  // As above, of one extent the pages that hold [begin, end). True: it was not queued before.
  // Requires: begin < end, inside the extent.
  bool AddPart(SessionId session, uint64_t extent, ExtentParts::Range part);
  // This extent goes before everything else unless it is being read or was; the session demands all
  // of it, if it demanded nothing of it yet. True: it was not queued before. Requires: extent <
  // extent_count.
  bool AddUrgent(SessionId session, uint64_t extent);
  struct Removed {
    // Was queued, and is not any more: nothing of it was brought in.
    std::vector<ExtentRange> idle;
    // The same, but all that others demand, or have demanded, is there.
    std::vector<ExtentRange> resident;
  };
  // Forgets the session and what nobody else demands.
  Removed RemoveSession(SessionId session);

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
  // What is to be read of an extent that was taken and is not finished yet.
  ExtentParts PartsOf(uint64_t extent) const;
  // The read of PartsOf() has ended. True: more was demanded meanwhile, so that it is queued again
  // (after kResident only: kAllResident holds what is demanded later, too). Requires: the extent
  // was taken and not finished yet.
  bool Finish(uint64_t extent, ReadOutcome outcome);
  // What anybody demands of it now.
  ExtentParts DemandedOf(uint64_t extent) const;

  // Of all that a session demands, in whole pages.
  uint64_t wanted_bytes() const { return wanted_bytes_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t failed_bytes() const { return failed_bytes_; }

 private:
  enum class State : uint8_t { kIdle, kQueued, kTaken, kResident, kFailed };
  struct Demand {
    std::vector<bool> demanded;
    // Of those that are not demanded whole.
    std::unordered_map<uint64_t, ExtentParts> parts;
    std::deque<ExtentRange> order;
  };
  // An extent of which not everything is wanted, or not everything is in the state that it is in.
  struct Partial {
    // Nothing when no session demands it.
    ExtentParts wanted;
    ExtentParts resident;
    // While it is taken.
    ExtentParts reading;
    // Asked for while it was taken.
    bool urgent = false;
  };
  struct Sums {
    uint64_t wanted = 0;
    uint64_t resident = 0;
    uint64_t failed = 0;
  };

  Demand& DemandOf(SessionId session);
  ExtentParts Whole(uint64_t extent) const;
  // Adds to what is demanded; true when the session demanded nothing of it. `parts` is one range.
  bool Widen(Demand& demand, uint64_t extent, ExtentParts::Range part);
  // Queues it if something is missing. True: it was not queued before.
  bool Enqueue(Demand& demand, uint64_t extent, bool is_new);
  // Makes an entry for an extent that had none.
  Partial& PartialOf(uint64_t extent);
  // Drops the entry where it says nothing.
  void DropIfWhole(uint64_t extent);
  bool IsMissing(uint64_t extent) const;
  // Takes out of `wanted` what no session demands any more.
  void Narrow(uint64_t extent);
  void SetState(uint64_t extent, State state);
  Sums SumsOf(uint64_t extent) const;
  // Around each change of what SumsOf() depends on.
  void TakeOff(uint64_t extent);
  void Count(uint64_t extent);
  void SetTaken(uint64_t extent);
  void AppendToAnyOrder(uint64_t extent);
  void PushUrgent(uint64_t extent);
  std::optional<uint64_t> NextOf(Demand& demand);
  // Drops what is queued no more.
  void TrimUrgent();
  std::optional<uint64_t> NextUrgent();

  const ExtentMap& extents_;
  std::vector<State> states_;
  // How many sessions demand it.
  std::vector<uint32_t> demand_counts_;
  std::map<SessionId, Demand> demands_;
  // All others are whole.
  std::unordered_map<uint64_t, Partial> partials_;
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
