// SIGTERM and SIGINT: the first begins a drain, the second ends the process at once.
#pragma once

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/unique_fd.h"

namespace forestage {

// Owned by main, used by its thread only.
class ShutdownSignals {
 public:
  // Exit code of a process that a second signal ended before it was drained.
  static constexpr int kSecondSignalExitCode = 1;

  // From now on both signals wait for this object instead of ending the process, and SIGPIPE is
  // ignored. Call before any other thread exists: threads inherit what is blocked.
  static absl::StatusOr<std::unique_ptr<ShutdownSignals>> Create();
  // The process must not need ExitAtNextSignal any more.
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // Blocks until one of the signals comes; returns its name.
  const char* Wait();

  // On a thread of its own: a further signal ends the process with kSecondSignalExitCode, and the
  // end of `grace` ends it with 0, whatever other threads hang in. Call once.
  void ExitAtNextSignal(absl::Duration grace);

 private:
  ShutdownSignals(UniqueFd signals, UniqueFd stop);
  void ExitLoop(absl::Time deadline) const;

  // Constant after construction.
  const UniqueFd signals_;
  const UniqueFd stop_;
  std::thread exit_thread_;
};

}  // namespace forestage
