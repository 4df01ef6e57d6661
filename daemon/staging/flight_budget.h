// What may be read of each mount: bytes in flight, for the mount and for the node, and bytes a
// second; shared by all checkpoints.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "daemon/staging/flight_limit.h"
#include "daemon/staging/lane_waker.h"
#include "daemon/staging/mount_flight.h"
#include "daemon/staging/read_pace.h"

namespace forestage {

// Thread-safe. Never blocks, and takes no lock but its own and those of wakers.
class FlightBudget : public std::enable_shared_from_this<FlightBudget> {
 public:
  struct Options {
    // Of one mount, and over all. A share may always have one read, so a mount has at least as many
    // as it has shares.
    uint64_t mount_bytes_max = 0;
    uint64_t node_bytes_max = 0;
  };
  struct Place {
    bool taken = false;
    // It was not, and only since its mount has been read as fast as it may be: to be asked for
    // again then. Else InfiniteFuture: the share's waker says when.
    absl::Time again = absl::InfiniteFuture();
  };
  // The part of one checkpoint that lies on one mount. Leaves the budget when it goes; then nothing
  // of it may be in flight.
  class Share {
   public:
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // A place for a read of so many bytes, to be given back. An urgent read may go beyond the
    // limit of bytes in flight a little, so that it does not wait for those that nobody waits for.
    // Never beyond that of bytes a second; of all that wait for this one, urgent reads go first,
    // and then who had his turn longest ago.
    Place TryTake(uint64_t bytes, bool urgent, absl::Time now);
    // Nothing is wanted any more: others need not leave room for it.
    void Withdraw();
    // So much of what was taken was not needed, before the read began.
    void GiveBack(uint64_t bytes, absl::Time now);
    // The read has ended. `read_bytes`: came from storage; nullopt: it failed, and nobody knows.
    void Give(uint64_t bytes, std::optional<uint64_t> read_bytes, absl::Time now);
    // The read does not come back: it keeps its place on its mount, but not in the node's budget.
    void SetStuck(uint64_t bytes);
    // It did come back, and is given back next.
    void ClearStuck(uint64_t bytes);
    // How many bytes may be in flight on the mount, over all shares.
    uint64_t limit_bytes() const;

   private:
    friend class FlightBudget;
    Share(std::shared_ptr<FlightBudget> budget, uint64_t device, std::shared_ptr<LaneWaker> waker)
        : budget_(std::move(budget)), device_(device), waker_(std::move(waker)) {}

    const std::shared_ptr<FlightBudget> budget_;
    const uint64_t device_;
    const std::shared_ptr<LaneWaker> waker_;
    // Guarded by the budget's mutex.
    uint64_t in_flight_bytes_ = 0;
    // For a place.
    bool waits_ = false;
    // There was a place, but not the time for it; and whether it was for an urgent read.
    bool held_back_ = false;
    bool urgent_ = false;
    // When it last took: counts what the mount gave out.
    uint64_t turn_ = 0;
  };

  // Requires: both maxima > 0.
  static std::shared_ptr<FlightBudget> Create(Options options);

  // `bytes_per_second_max`: of the mount, 0 for none; what the first to join it says counts.
  std::unique_ptr<Share> Join(uint64_t device, uint64_t bytes_per_second_max,
                              std::shared_ptr<LaneWaker> waker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Mounts that somebody has joined, in the order of their numbers.
  std::vector<MountFlight> Flights() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Mount {
    explicit Mount(FlightLimit::Range range) : limit(range) {}
    FlightLimit limit;
    uint64_t in_flight_bytes = 0;
    uint64_t stuck_bytes = 0;
    std::optional<ReadPace> pace;
    // A share was held back since a read ended.
    bool held_back = false;
    uint64_t turns = 0;
    std::list<Share*> shares;
  };

  explicit FlightBudget(Options options) : options_(options) {}
  FlightLimit::Range RangeOf() const;
  bool Allows(const Mount& mount, const Share& share, uint64_t bytes, bool urgent) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From when on the share may begin a read, as far as bytes a second go.
  static absl::Time PacedFrom(Mount& mount, const Share& share, bool urgent, absl::Time now);
  void Free(Mount& mount, Share& share, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Pays back what was not read.
  static void PayBack(Mount& mount, uint64_t bytes, absl::Time now);
  // There may be a place on `mount`; on others as well when the node's budget was what they lacked.
  void WakeWaiting(const Mount& mount) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<uint64_t, Mount> mounts_ ABSL_GUARDED_BY(mutex_);
  // Without what is stuck.
  uint64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Somebody was refused for want of the node's budget since the last waking of all.
  bool node_refused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forestage
