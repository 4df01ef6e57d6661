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
#include "common/recent_rate.h"
#include "common/staging_board.h"
#include "daemon/staging/demand_queue.h"
#include "daemon/staging/staged_checkpoint.h"
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
    // Over all lanes. One extent is always allowed.
    uint64_t in_flight_bytes_max = 0;
    size_t lane_count = 1;
    std::shared_ptr<StagingBoard> board;
    // May be null; see AbandonObserver.
    StagingObserver* observer = nullptr;
  };
  // Requires: the board has as many extents as the files.
  explicit Stager(Options options);

  const ExtentMap& extents() const { return extents_; }
  const std::shared_ptr<StagingBoard>& board() const { return board_; }

  // Requires: ranges and indexes are inside the map.
  void AddDemand(SessionId session, absl::Span<const ExtentRange> ranges)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddUrgent(SessionId session, absl::Span<const uint64_t> extents) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveSession(SessionId session) ABSL_LOCKS_EXCLUDED(mutex_);

  StagingProgress progress() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> read_errors() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes the board and tells the lanes to end. Does not wait.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  bool stopping() const { return stopping_.load(); }
  // The observer is not called any more once this returns.
  void AbandonObserver() ABSL_LOCKS_EXCLUDED(observer_mutex_);

  // For lanes. The reader of a lane is woken when there may be work for it, until Detach.
  void AttachLane(size_t lane, StorageReader* reader) ABSL_LOCKS_EXCLUDED(mutex_);
  void DetachLane(size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next extent for this lane; nullopt when nothing is wanted, the budget of reads in flight
  // is used up, or lanes are to end.
  std::optional<ReadRequest> Take(size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Requires: the request of this tag was taken by this lane.
  void Finish(size_t lane, const ReadResult& result) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct LaneState {
    StorageReader* reader = nullptr;
    uint64_t in_flight_bytes = 0;
    bool waits_for_budget = false;
  };
  struct InFlight {
    ReadCause cause = ReadCause::kStage;
    uint64_t bytes = 0;
    absl::Time begun;
  };

  bool BudgetAllows(LaneState& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDemandChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const ReadResult& result, const absl::Status& status, const InFlight& read)
      ABSL_LOCKS_EXCLUDED(observer_mutex_);

  // Constant after construction.
  const std::string path_label_;
  const std::vector<std::unique_ptr<ShardFile>> files_;
  const ExtentMap extents_;
  const uint64_t in_flight_bytes_max_;
  const uint64_t lane_bytes_max_;
  const std::shared_ptr<StagingBoard> board_;

  std::atomic<bool> stopping_ = false;
  std::atomic<size_t> errors_seen_ = 0;

  mutable absl::Mutex mutex_;
  DemandQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<LaneState> lanes_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, InFlight> in_flight_ ABSL_GUARDED_BY(mutex_);
  uint64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t read_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> read_errors_ ABSL_GUARDED_BY(mutex_);
  // InfiniteFuture until it happens.
  absl::Time first_demand_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time completed_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // Of bytes made resident; asking it moves its window.
  mutable RecentRate rate_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex observer_mutex_;
  StagingObserver* observer_ ABSL_GUARDED_BY(observer_mutex_);
};

}  // namespace forestage
