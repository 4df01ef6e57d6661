// Hands the extents of one checkpoint to its lanes and shows on the board what came of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "checkpoint/extent.h"
#include "common/file_system_magic.h"
#include "common/recent_rate.h"
#include "common/staging_board.h"
#include "daemon/config.h"
#include "daemon/limits.h"
#include "daemon/staging/demand_queue.h"
#include "daemon/staging/flight_budget.h"
#include "daemon/staging/lane_waker.h"
#include "daemon/staging/read_ahead_hold.h"
#include "daemon/staging/read_error_list.h"
#include "daemon/staging/staged_checkpoint.h"
#include "daemon/storage/read_rate_limits.h"
#include "daemon/storage/shard_file.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// Thread-safe. Owns the files, so it lives until the last lane has ended, even one that its
// checkpoint had to leave behind with a device that does not answer.
class Stager {
 public:
  struct Options {
    // For the log.
    std::string path_label;
    std::vector<std::unique_ptr<ShardFile>> files;
    uint64_t extent_bytes = 0;
    std::shared_ptr<FlightBudget> budget;
    ReadRateLimits read_rate_limits;
    // See StripedCheckpointStore::Options.
    ReadOrder read_order = ReadOrder::kFile;
    uint64_t node_hash = 0;
    size_t lane_count = 1;
    std::shared_ptr<StagingBoard> board;
    // May be null; see AbandonObserver.
    StagingObserver* observer = nullptr;
    // Files of file systems of this type (statfs) are not read ahead while ranks open.
    uint32_t held_file_system = kFuseMagic;
    absl::Duration hold_max = kReadAheadHoldMax;
  };
  // Requires: the board has as many extents as the files.
  explicit Stager(Options options);

  const ExtentMap& extents() const { return extents_; }
  const std::shared_ptr<StagingBoard>& board() const { return board_; }

  // Bytes [begin, end) of a shard.
  struct ShardRange {
    uint32_t shard_index = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // In this order; the pages that hold these bytes. Requires: ranges and indexes are inside the
  // map.
  void AddDemand(SessionId session, absl::Span<const ShardRange> ranges)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Its beginning, then from where reading begins on this node, and round.
  void AddDemandForEverything(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddUrgent(SessionId session, absl::Span<const uint64_t> extents) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveSession(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);
  // See StagedCheckpoint.
  void HoldReadAhead(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseReadAhead(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t CacheableBytes() const;
  uint64_t CachedBytes() const;
  StagingProgress progress() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> read_errors() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes the board and tells the lanes to end. Does not wait.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopping() const { return stopping_.load(); }
  // Reports reads that began before `now` - kStuckReadTime and have not ended. Each once.
  void ReportStuckReads(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // The observer is not called any more once this returns.
  void AbandonObserver() ABSL_LOCKS_EXCLUDED(observer_mutex_);

  // For lanes. The reader of a lane is woken when there may be work for it, until Detach.
  void AttachLane(StorageReader* reader);
  void DetachLane(StorageReader* reader);
  struct Work {
    // nullopt: nothing is wanted, the budget of reads in flight is used up, a mount was read as
    // fast as it may be or is left to ranks that open, or lanes are to end.
    std::optional<ReadRequest> request;
    // When to ask again, should nobody wake the lane before; InfiniteFuture: not before.
    absl::Time again = absl::InfiniteFuture();
  };
  // The next extent for this lane.
  Work Take(size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Requires: the request of this tag was taken by this lane.
  void Finish(size_t lane, const ReadResult& result) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The part of the checkpoint that lies on one mount: a mount that stands still holds up no other.
  struct MountPart {
    MountPart(std::unique_ptr<FlightBudget::Share> its_share, bool its_may_be_held,
              const ExtentMap& extents)
        : share(std::move(its_share)), may_be_held(its_may_be_held), queue(extents) {}
    std::unique_ptr<FlightBudget::Share> share;
    // While ranks open only what is urgent is read of it.
    bool may_be_held;
    DemandQueue queue;
  };
  struct InFlight {
    ReadCause cause = ReadCause::kStage;
    uint64_t bytes = 0;
    absl::Time begun;
    bool stuck = false;
  };

  // The extent that reading begins with, but for the first of all.
  uint64_t FirstExtent(ReadOrder order, uint64_t node_hash) const;
  // Extents [first, last).
  void AddExtents(SessionId session, ExtentRange range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  MountPart& PartOf(uint64_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRange(SessionId session, const ShardRange& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Shows on the board that these are to be read, whatever they were.
  void ShowQueued(ExtentRange range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is demanded of an extent and, without a gap, around it, as far as it matters to how the
  // extent is read.
  std::vector<ByteRange> DemandedAround(const DemandQueue& queue, uint64_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ReadRequest RequestFor(const DemandQueue& queue, uint64_t index)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A lane has its share of what the mount takes, so that no single one reads everything.
  bool LaneMayTake(size_t lane, const MountPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Work TakeFrom(MountPart& part, size_t lane, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDemandChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<UnansweredRead> StuckReads(absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StagingProgress Sums() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const ReadResult& result, const absl::Status& status, const InFlight& read,
            bool error_is_kept) ABSL_LOCKS_EXCLUDED(observer_mutex_);

  // Constant after construction.
  const std::string path_label_;
  const std::vector<std::unique_ptr<ShardFile>> files_;
  const ExtentMap extents_;
  const std::shared_ptr<StagingBoard> board_;
  const std::shared_ptr<LaneWaker> waker_;
  const uint64_t first_extent_;
  // By shard: index into parts_.
  std::vector<size_t> part_of_shard_;

  std::atomic<bool> stopping_ = false;

  mutable absl::Mutex mutex_;
  std::vector<MountPart> parts_ ABSL_GUARDED_BY(mutex_);
  // Which part a lane asks first, so that all mounts move.
  size_t next_part_ ABSL_GUARDED_BY(mutex_) = 0;
  // By lane.
  std::vector<uint64_t> lane_bytes_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  ReadAheadHold hold_ ABSL_GUARDED_BY(mutex_);
  uint64_t read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  ReadErrorList read_errors_ ABSL_GUARDED_BY(mutex_);
  // InfiniteFuture until it happens.
  absl::Time first_demand_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time completed_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Of bytes made resident; asking it moves its window.
  mutable RecentRate rate_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex observer_mutex_;
  StagingObserver* observer_ ABSL_GUARDED_BY(observer_mutex_);
};

}  // namespace forestage
