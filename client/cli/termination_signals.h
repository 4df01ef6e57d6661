// The signals that ask a command to end, as something to look at, and the end of a command that
// does not look: a thread of it may wait in a file system that never answers, which no signal ends.
#pragma once

#include <csignal>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "common/unique_fd.h"

namespace forestage {

// SIGINT, SIGTERM, SIGHUP and SIGALRM, without those of the latter two that whoever started this
// program has it ignore (nohup). SIGINT belongs to them always: a shell has what runs in its
// background ignore it, and then it never comes.
sigset_t WatchedSignals();
// Makes the calling thread, and so those that it starts afterwards, leave them pending. To be
// called before anything starts threads.
void BlockWatchedSignals();
// Undoes that, for a command that does not look at them: one that is pending ends the process.
void UnblockWatchedSignals();

// Closes what others may wait for, while this process cannot end: shuts down its sockets and closes
// its pipes and standard descriptors. Asks no file system. For processes that are about to end.
void ReleaseDescriptors();

// Ends this process by the signal, as if it had not been watched. Where that has no effect (process
// 1 of a container), by exit code 128 + number.
[[noreturn]] void DieOf(int signal_number);

// Watches in a thread of its own. When a signal has come and this object lives `patience` later,
// the thread releases the descriptors and ends the process by that signal. The process may stay, as
// long as its storage does not answer, but holds no session and no output any more. Thread-safe.
class TerminationSignals {
 public:
  // Requires: BlockWatchedSignals was called in this thread.
  explicit TerminationSignals(absl::Duration patience);
  ~TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

  // Waits at most `timeout` for one of them. Once true, always true.
  bool Wait(absl::Duration timeout) const {
    return received_.WaitForNotificationWithTimeout(timeout);
  }
  // Has one come?
  bool received() const { return received_.HasBeenNotified(); }

 private:
  void Watch();

  // Constant after construction.
  const absl::Duration patience_;
  UniqueFd signals_;
  UniqueFd stop_;

  absl::Notification received_;
  std::thread watcher_;
};

}  // namespace forestage
