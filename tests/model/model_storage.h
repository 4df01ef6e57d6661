// The storage of the daemon model: readers for the daemon's own lanes, whose every step is begun by
// the model.
//
// Lanes are threads. Here only one of them runs at a time, and only while the model waits for it: a
// lane that waits for its reader is parked until the model runs it, and the model goes on when it
// is parked again. So what happens depends on the model's choices alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "daemon/staging/staged_checkpoint.h"
#include "daemon/storage/reader_selection.h"
#include "daemon/storage/shard_file.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// Thread-safe. Outlives its readers.
class ModelStorage : public StagingObserver {
 public:
  // Names the readers of one staged checkpoint.
  using Epoch = uint64_t;
  struct LaneName {
    Epoch epoch = 0;
    size_t index = 0;
    friend auto operator<=>(const LaneName&, const LaneName&) = default;
  };
  struct Read {
    uint64_t id = 0;
    LaneName lane;
    std::string file;
    // Whole pages of the file.
    std::vector<ByteRange> ranges;
    // What it ends with when its lane is told to cancel it while nobody steps the lane.
    bool ends_well_when_cancelled = false;
  };

  // `loses_wakes`: a lane that is woken does not notice.
  explicit ModelStorage(bool loses_wakes);
  ~ModelStorage() override;

  StorageReaderFactory MakeFactory();
  // Readers made from now on are of a new epoch.
  Epoch BeginEpoch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Readers made from now on are refused.
  void RefuseReaders(bool refuse) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the lanes that have been started for this epoch are parked.
  void AwaitParked(Epoch epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lanes of this epoch run by themselves from now on, towards their end.
  void LetRun(Epoch epoch) ABSL_LOCKS_EXCLUDED(mutex_);

  // Parked lanes with something to do: woken, a read has ended, or halfway through the end of one.
  std::vector<LaneName> Runnable() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs it until it is parked again or has ended. `stop_halfway`: it is parked, too, between what
  // it tells of a read's end and what it shows on the board. Requires: it is runnable.
  void Run(LaneName lane, bool stop_halfway) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsHalfway(LaneName lane) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads in flight, oldest first.
  std::vector<Read> Reads() const ABSL_LOCKS_EXCLUDED(mutex_);
  // A read ends; its lane sees it when it runs. OK: its bytes are verified as of now, unless
  // `lies`.
  void End(uint64_t read_id, const absl::Status& status, bool lies = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What was verified of a file does not hold any more.
  void OnFileChanged(const std::string& file) ABSL_LOCKS_EXCLUDED(mutex_);

  // All bytes [begin, end) were verified for this epoch.
  bool IsVerified(Epoch epoch, const std::string& file, uint64_t begin, uint64_t end) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Some page of them was.
  bool IsVerifiedInPart(Epoch epoch, const std::string& file, uint64_t begin, uint64_t end) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A read that touches these bytes ended badly, or the file changed.
  bool HasFailed(Epoch epoch, const std::string& file, uint64_t begin, uint64_t end) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A lane has begun to read some of these bytes and not shown what came of it.
  bool IsBusy(Epoch epoch, const std::string& file, uint64_t begin, uint64_t end) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  size_t lanes() const ABSL_LOCKS_EXCLUDED(mutex_);

  void OnExtentRead(ReadCause cause, uint64_t storage_bytes, absl::Duration latency) override;
  void OnReadError(const absl::Status& status) override;

 private:
  class LaneReader;
  // Of one epoch and file, by page.
  struct Pages {
    std::set<uint64_t> verified;
    std::set<uint64_t> failed;
  };
  struct LaneState {
    bool parked = false;
    bool granted = false;
    bool woken = false;
    bool cancelled = false;
    bool halfway = false;
    bool stop_halfway = false;
    std::vector<ReadResult> results;
    // The reads of `results`, and those that the lane took last: the board may not show them yet.
    std::vector<Read> ended;
    std::vector<Read> taken;
  };

  absl::StatusOr<std::unique_ptr<StorageReader>> MakeReader() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsRunnable(const LaneState& lane) const;
  bool RunsByItself(LaneName lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(uint64_t read_id, const absl::Status& status, bool lies)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lane's thread waits until it may go on.
  void Park(LaneName lane, bool halfway) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLocked(LaneName lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ParkHalfway() ABSL_LOCKS_EXCLUDED(mutex_);

  const bool loses_wakes_;
  mutable absl::Mutex mutex_;
  Epoch epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refuse_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_read_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<LaneName, std::unique_ptr<LaneState>> lanes_ ABSL_GUARDED_BY(mutex_);
  std::set<Epoch> run_by_themselves_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::pair<Read, ReadRequest>> reads_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<Epoch, std::string>, Pages> pages_ ABSL_GUARDED_BY(mutex_);
  // Epochs before this one see a changed file.
  std::map<std::string, Epoch> changed_before_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
