// One rank's load: through the client library, as an engine would do it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/load_clock.h"
#include "client/cli/local_catalog.h"
#include "client/cli/own_memory.h"
#include "client/cli/rank_message.h"
#include "client/cli/rank_options.h"
#include "client/cli/rank_plan.h"
#include "client/cli/slice_verifier.h"

#include "forestage/session.h"

namespace forestage {

// Use once. Not thread-safe.
class RankLoad {
 public:
  // `report` is called for everything but the result.
  RankLoad(GlobalOptions global, RankOptions options,
           std::function<void(const RankMessage&)> report);

  // Loads, touches (or copies) every byte of and, if asked, checks every slice of the plan. Blocks
  // on the daemon, the other ranks and the file system as the client library does.
  RankResult Run();
  // Where its reads of files stand that it alone knows of. From any thread.
  std::vector<ReadPlace> ReadPlaces() const ABSL_LOCKS_EXCLUDED(session_mutex_);

 private:
  // A slice's bytes in place, or in buffer_.
  struct LoadedBytes {
    std::optional<SliceView> view;
    absl::Span<const std::byte> bytes;
  };

  absl::Status Open();
  absl::Status LoadAll();
  size_t ShardOf(const PlannedSlice& planned) const;
  absl::StatusOr<LoadedBytes> ReadAndTouch(const PlannedSlice& planned);
  absl::StatusOr<LoadedBytes> ReadIntoOwnMemory(const PlannedSlice& planned);
  // With the clock stopped, what is no part of the load.
  absl::Status CheckAndTell(const PlannedSlice& planned, absl::Span<const std::byte> bytes);
  absl::Status Check(const PlannedSlice& planned, absl::Span<const std::byte> bytes);
  void ReportProgress(absl::Time now);
  void CloseSession();
  // Asks the daemon what it read; keeps what it said before when it does not answer.
  void HearReadBytes(absl::Duration timeout);

  // Constant after construction.
  const GlobalOptions global_;
  const RankOptions options_;
  const std::function<void(const RankMessage&)> report_;

  // Only with RankOptions::verify.
  std::unique_ptr<SliceVerifier> verifier_;
  // From just before the session is opened.
  std::unique_ptr<LoadClock> clock_;
  std::unique_ptr<Session> session_;
  // The session and the plan once both are there, until they go; for ReadPlaces.
  mutable absl::Mutex session_mutex_;
  const Session* open_session_ ABSL_GUARDED_BY(session_mutex_) = nullptr;
  // Of plan_.slices: the one whose pages are touched, plus 1; 0 for none.
  std::atomic<size_t> touched_ = 0;
  // Of the session's catalog.
  RankPlan plan_;
  // For slices that cannot be used in place.
  std::vector<std::byte> buffer_;
  // With RankOptions::own: every slice so far.
  OwnMemory own_;
  RankResult result_;
  uint64_t checked_slices_ = 0;
  absl::Time next_progress_;
  absl::Time next_read_bytes_;
};

// The hidden command `rank`: a RankLoad that writes its messages to kRankMessageDescriptor. Ends
// with its parent.
ExitCode RunRank(const GlobalOptions& global, const RankOptions& options);

}  // namespace forestage
