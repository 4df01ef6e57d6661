// A load of one rank: its files, its catalog, and the daemon's help while there is some.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/block_filler.h"
#include "client/src/checkpoint_files.h"
#include "client/src/daemon_loss.h"
#include "client/src/daemon_session.h"
#include "client/src/held_catalog.h"
#include "client/src/read_ahead.h"
#include "client/src/read_places.h"
#include "client/src/staged_extents.h"

#include "checkpoint/slice.h"
#include "forestage/catalog.h"
#include "forestage/decision.h"
#include "forestage/session.h"
#include "forestage/slice.h"

namespace forestage {

// What stands behind Session and its slices, which share it. Thread-safe.
//
//   staged (a daemon reads) --daemon lost--> native        both --Close()--> closed
//
// In a forked child nothing here may be used, nor destroyed: the destructor would end the parent's
// session and wait for gRPC threads that the child does not have. See InForkedChild().
class LoadSession : public std::enable_shared_from_this<LoadSession> {
 public:
  // As Session::Open. `connector` is called at most once, and not at all for a native load.
  static absl::StatusOr<std::shared_ptr<LoadSession>> Open(const std::string& directory,
                                                           const SessionOptions& options,
                                                           const DaemonConnector& connector);
  ~LoadSession();

  std::shared_ptr<const Catalog> catalog() const { return catalog_; }
  std::shared_ptr<const CheckpointFiles> files() const { return files_; }
  Decision decision() const;

  absl::StatusOr<Slice> GetSlice(absl::string_view tensor, absl::Span<const Range> ranges) const;
  absl::StatusOr<Slice> GetSlice(size_t tensor_index, absl::Span<const Range> ranges) const;
  // Somebody looks at the tensor's bytes through the mapping.
  void MarkViewed(size_t tensor_index) const;
  void MarkConsumed(size_t tensor_index);
  absl::StatusOr<StagingStatus> GetStagingStatus(absl::Time deadline) const;
  absl::StatusOr<StagingStatus> WaitUntilStaged(
      absl::Time deadline, const std::function<void(const StagingStatus&)>& progress) const;
  absl::Status CheckFilesUnchanged() const;
  void Close();

  // FAILED_PRECONDITION in a forked child and after Close().
  absl::Status CheckUsable() const;
  // Where reads stand; thread-safe. Marked by slices.
  ReadPlaces& read_places() const { return read_places_; }
  std::vector<ReadPlace> ListReadPlaces() const;
  bool InForkedChild() const { return getpid() != pid_; }
  // Gives up one reference. In a forked child it is leaked on purpose.
  static void Drop(std::shared_ptr<const LoadSession> session);

  // Who reads bytes [begin, end) of a shard; waits for the daemon if it is the one, unless they
  // seem to be in memory already. The caller goes on to `ahead_end`. DEADLINE_EXCEEDED;
  // FAILED_PRECONDITION when the session is closed meanwhile.
  absl::StatusOr<Reader> WaitForBytes(uint32_t shard_index, uint64_t begin, uint64_t end,
                                      uint64_t ahead_end, absl::Time deadline) const;
  // This rank itself is about to read from `begin` in a slice: what comes next is wanted soon.
  void ReadAheadOf(const ReadAhead::Part& slice, uint64_t begin) const {
    read_ahead_->MoveTo(slice, begin);
  }
  // Before this rank itself copies these bytes out of the page cache by reads. Errors are the
  // reads' own.
  void BringIn(uint32_t shard_index, uint64_t begin, uint64_t end) const {
    filler_->BringIn(shard_index, begin, end);
  }

 private:
  LoadSession(std::shared_ptr<const CheckpointFiles> files, const SessionOptions& options);

  // Each OK leaves the load staged, or native with a decision of the daemon.
  // Opens those of the files that are only named. `files` is files_.
  absl::Status Join(const std::string& directory, const SessionOptions& options,
                    const DaemonConnector& connector, CheckpointFiles& files);
  absl::Status UseStaging(DaemonWelcome& welcome);
  absl::Status BecomeNative(std::string reason);
  absl::Status ResolveDemand(const SessionOptions& options);
  absl::Status AddDemand(size_t tensor_index, absl::Span<const Range> ranges);
  void SetCatalog(HeldCatalog catalog);
  void SendDemand() const;
  // In the decision's reason, once.
  void SayIfNotMapped();
  absl::StatusOr<SlicePlan> PlanSlice(size_t tensor_index, absl::Span<const Range> ranges) const;
  // Of what this rank demands; ranges may overlap.
  std::vector<std::pair<uint64_t, uint64_t>> DemandedExtents() const;
  // Whether the daemon reads, or has read, something of what this rank demands.
  bool AnyDemandedBegun() const;
  // Whether what the board shows as resident of these bytes is all that this rank demands of them,
  // and not only what others do.
  bool BoardHolds(uint32_t shard_index, uint64_t begin, uint64_t end) const;
  // Waits, for a short time at most, until the daemon has seen what this rank demands.
  void AwaitDemandSeen(absl::Time deadline) const;
  void MakeReadAhead(const SessionOptions& options);
  // Whether these bytes seem to be in memory although the daemon has not looked yet.
  bool IsThereAlready(uint32_t shard_index, uint64_t begin, uint64_t end) const;

  // Constant after construction.
  const pid_t pid_ = getpid();
  const std::shared_ptr<const CheckpointFiles> files_;
  const std::shared_ptr<DaemonLoss> loss_ = std::make_shared<DaemonLoss>();

  // Constant after Open.
  std::optional<HeldCatalog> held_catalog_;
  std::shared_ptr<const Catalog> catalog_;
  Decision given_;
  // nullopt: everything.
  std::optional<std::vector<DemandedBytes>> demand_;
  std::unique_ptr<DaemonSession> daemon_;          // also when the daemon decided native
  std::unique_ptr<StagedExtents> extents_;         // only while it is to stage; uses daemon_
  std::unique_ptr<std::atomic<bool>[]> viewed_;    // one a tensor
  std::unique_ptr<std::atomic<bool>[]> consumed_;  // one a tensor
  // For what the daemon does not read.
  std::unique_ptr<BlockFiller> filler_;
  std::unique_ptr<ReadAhead> read_ahead_;  // uses filler_
  absl::Time demand_sent_at_ = absl::InfinitePast();

  // The daemon has seen this rank's demand, as far as is known.
  mutable std::atomic<bool> demand_seen_ = true;

  std::atomic<bool> closed_ = false;
  mutable ReadPlaces read_places_;
};

}  // namespace forestage
