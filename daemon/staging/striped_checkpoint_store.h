// The CheckpointStore of the daemon: opens, checks and catalogs what clients sent, once for all who
// sent the same files.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "common/file_system_magic.h"
#include "daemon/config.h"
#include "daemon/limits.h"
#include "daemon/staging/header_quota.h"
#include "daemon/staging/opening_watch.h"
#include "daemon/staging/staged_checkpoint.h"
#include "daemon/staging/stager.h"
#include "daemon/staging/striped_checkpoint.h"
#include "daemon/storage/mount_table.h"
#include "daemon/storage/read_rate_limits.h"
#include "daemon/storage/reader_selection.h"
#include "daemon/storage/shard_file.h"

namespace forestage {

// What makes two checkpoints one: the same files under the same names, in the same order.
using CheckpointKey = std::vector<std::pair<std::string, CacheIdentity>>;

// See CheckpointStore. One thread keeps the heartbeat of every board.
class StripedCheckpointStore : public CheckpointStore {
 public:
  struct Options {
    // See Config.
    uint64_t extent_bytes = Config().extent_bytes;
    uint32_t lanes_max = Config().lanes_max;
    uint64_t in_flight_bytes_max = Config().in_flight_bytes_max;
    uint64_t node_in_flight_bytes_max = Config().node_in_flight_bytes_max;
    ReadRateLimits read_rate_limits = {};
    ReadOrder read_order = ReadOrder::kFile;
    // Of the node's name.
    uint64_t node_hash = 0;
    // Text of headers of all checkpoints that are held.
    uint64_t header_bytes_max = kHeldHeaderBytesMax;
    // May be null; else outlives the store and every checkpoint it gave out.
    StagingObserver* observer = nullptr;
    // See Stager::Options.
    uint32_t held_file_system = kFuseMagic;
    absl::Duration hold_max = kReadAheadHoldMax;
    ReaderSelection reader;
  };
  // Chooses the reader too: fails where the configuration asks for one that is refused.
  static absl::StatusOr<Options> OptionsFrom(const Config& config, StagingObserver* observer);

  // Requires: lanes_max > 0; extent_bytes is a power of two and at least a page.
  static absl::StatusOr<std::unique_ptr<StripedCheckpointStore>> Create(Options options);
  ~StripedCheckpointStore() override;

  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(const std::string& path_label,
                                                            std::vector<ReceivedShard> shards,
                                                            size_t lane_count) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<StagedCheckpoint>> List() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);
  std::string reader_name() const override { return options_.reader.name; }
  std::string reader_reason() const override { return options_.reader.reason; }
  std::vector<MountTable::Seen> mounts() const override { return mounts_->List(); }
  std::vector<MountFlight> Flights() const override { return budget_->Flights(); }
  // Differs between any two runs of the daemon; every board carries it.
  uint64_t generation() const { return generation_; }

 private:
  struct Entry {
    CheckpointKey key;
    // Somebody reads its headers.
    bool building = true;
    // Apart from the checkpoint, so that what the store does to them never makes it the
    // checkpoint's last owner, who waits for lanes.
    std::weak_ptr<StagedCheckpoint> checkpoint = {};
    std::weak_ptr<Stager> stager = {};
  };
  using EntryIterator = std::list<Entry>::iterator;

  StripedCheckpointStore(Options options, uint64_t generation);

  absl::StatusOr<std::shared_ptr<StripedCheckpoint>> Build(const std::string& path_label,
                                                           std::vector<ReceivedShard> shards,
                                                           const CheckpointKey& key,
                                                           size_t lane_count,
                                                           std::weak_ptr<Stager>* stager) const;
  // A held checkpoint; nullptr: `*entry` is a new entry that the caller builds. Waits while
  // somebody else builds an equal one.
  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> FindOrReserve(const CheckpointKey& key,
                                                                  EntryIterator* entry)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepHeartbeat() ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after construction.
  const Options options_;
  const uint64_t generation_;
  const std::shared_ptr<FlightBudget> budget_;
  const std::unique_ptr<HeaderQuota> header_quota_;
  const std::unique_ptr<MountTable> mounts_ = std::make_unique<MountTable>();
  OpeningWatch openings_;

  mutable absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread heartbeat_;
};

}  // namespace forestage
