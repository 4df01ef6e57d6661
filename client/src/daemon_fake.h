// A daemon in this process, for tests of the client without gRPC: a real catalog and a real board.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/src/daemon_session.h"

#include "common/staging_board.h"

namespace forestage {

// Answers one open. Thread-safe; outlives the sessions that it welcomed.
class DaemonFake {
 public:
  static constexpr uint64_t kGeneration = 42;
  static constexpr uint64_t kExtentBytes = 64 * 1024;

  // What an open gives.
  absl::Status refusal;
  Decision decision = {.effective = Policy::kRankStripedReadAhead, .activated = true};
  // May change the catalog before it is sealed, and the board's options.
  std::function<void(std::vector<std::byte>&)> damage_catalog;
  std::function<void(StagingBoard::Options&)> damage_board;
  // Called for every urgent message, on the thread that sends it.
  std::function<void(DaemonFake&, absl::Span<const uint64_t>)> on_urgent;
  // Called for every question for progress, on the thread that asks, before the answer.
  std::function<void(DaemonFake&)> on_progress;
  StagingStatus progress;

  DaemonConnector connector();

  // Of the last open. Requires: there was one that was welcomed.
  StagingBoard& board() { return *board_; }
  DaemonLoss& loss() { return *loss_; }
  void SetAll(ExtentState state);

  DaemonOpenRequest request() const;
  std::vector<DemandedBytes> demand() const;
  std::vector<uint64_t> urgent() const;
  std::vector<uint32_t> consumed() const;
  int opens() const { return opens_; }
  int closes() const { return closes_; }
  int progress_requests() const { return progress_requests_; }

 private:
  class Connection;
  absl::StatusOr<DaemonWelcome> Welcome(const DaemonOpenRequest& request,
                                        std::shared_ptr<DaemonLoss> loss);

  std::unique_ptr<StagingBoard> board_;
  std::shared_ptr<DaemonLoss> loss_;
  std::atomic<int> opens_ = 0;
  std::atomic<int> closes_ = 0;
  std::atomic<int> progress_requests_ = 0;

  mutable absl::Mutex mutex_;
  DaemonOpenRequest request_ ABSL_GUARDED_BY(mutex_);
  std::vector<DemandedBytes> demand_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> urgent_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> consumed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
