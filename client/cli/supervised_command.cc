#include "client/cli/supervised_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/blocked_call.h"
#include "client/cli/oom_kills.h"
#include "client/cli/output.h"
#include "client/cli/stall_watch.h"
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// How soon the parent sees what no signal tells it.
constexpr absl::Duration kLookInterval = absl::Milliseconds(500);
// So long the kernel may take to let a process go that ends.
constexpr absl::Duration kEndPatience = absl::Milliseconds(500);
// The same when it has done its work, and nobody presses.
constexpr absl::Duration kDonePatience = absl::Seconds(2);

sigset_t ChildEnded() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return set;
}

// The parent's side. Not thread-safe.
class Supervisor {
 public:
  Supervisor(const GlobalOptions& global, absl::Duration patience, pid_t child, UniqueFd code)
      : global_(global), patience_(patience), child_(child), code_(std::move(code)), watch_(child) {
    watch_.Restart(absl::Now());
  }

  // Requires: the watched signals and SIGCHLD are blocked.
  ExitCode Run() {
    sigset_t set = WatchedSignals();
    sigaddset(&set, SIGCHLD);
    while (true) {
      const timespec interval = absl::ToTimespec(kLookInterval);
      const int number = sigtimedwait(&set, nullptr, &interval);
      const absl::Time now = absl::Now();
      if (number > 0 && number != SIGCHLD) TakeSignal(number, now);
      if (const std::optional<ExitCode> end = Reap()) return *end;
      ReadCode(now);
      if (now >= deadline_) return Abandon();
      // Where it has to end without a word, this process says the word.
      if (signal_ != 0 && patience_ > absl::ZeroDuration()) {
        if (auto blocked = FindBlockedCall(child_)) blocked_ = std::move(blocked);
      }
      if (deadline_ != absl::InfiniteFuture()) continue;
      if (const auto blocked = watch_.Look(now)) Note(StallText(*blocked));
    }
  }

 private:
  void TakeSignal(int number, absl::Time now) {
    if (signal_ == 0) {
      signal_ = number;
      deadline_ = std::min(deadline_, now + patience_ + kEndPatience);
    }
    kill(child_, number);
  }

  // Does not return when the child was ended by a signal.
  std::optional<ExitCode> Reap() {
    int status = 0;
    if (waitpid(child_, &status, WNOHANG) != child_) return std::nullopt;
    if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
    const int number = WTERMSIG(status);
    if (number == signal_ && patience_ > absl::ZeroDuration()) {
      Fail(global_, ExitCode::kFailed,
           absl::StrCat("interrupted (", strsignal(signal_), ") while ",
                        blocked_.has_value() ? absl::StrCat("waiting for ", BlockedText(*blocked_))
                                             : "the storage or the daemon did not answer"));
    }
    if (number == SIGKILL) {
      Fail(global_, ExitCode::kFailed,
           absl::StrCat("the process of this command was killed by signal 9", oom_.Suspicion()));
    }
    // Its core is enough.
    const rlimit none = {};
    (void)setrlimit(RLIMIT_CORE, &none);
    DieOf(number);
  }

  // Of a child that has done its work, and may be long in ending.
  void ReadCode(absl::Time now) {
    uint8_t code = 0;
    if (done_.has_value() || read(code_.get(), &code, sizeof(code)) != sizeof(code)) return;
    done_ = static_cast<ExitCode>(code);
    deadline_ = std::min(deadline_, now + kDonePatience);
  }

  ExitCode Abandon() {
    if (done_.has_value()) return *done_;
    const std::optional<BlockedCall> blocked = FindBlockedCall(child_);
    Fail(global_, ExitCode::kFailed,
         absl::StrCat("interrupted (", strsignal(signal_), "); ",
                      blocked.has_value()
                          ? absl::StrCat(BlockedText(*blocked), " does not come back")
                          : "the storage does not answer",
                      ", so process ", child_, " stays until its file system answers"));
    DieOf(signal_);
  }

  const GlobalOptions& global_;
  const absl::Duration patience_;
  const pid_t child_;
  // The child writes its exit code here before it ends.
  const UniqueFd code_;
  const OomKills oom_;
  StallWatch watch_;
  // The first signal that came.
  int signal_ = 0;
  // What the child waited for afterwards.
  std::optional<BlockedCall> blocked_;
  std::optional<ExitCode> done_;
  absl::Time deadline_ = absl::InfiniteFuture();
};

ExitCode RunAsChild(pid_t parent, absl::Duration patience, int code_descriptor,
                    const std::function<ExitCode(TerminationSignals&)>& command) {
  CHECK(prctl(PR_SET_PDEATHSIG, SIGTERM) == 0);
  if (getppid() != parent) DieOf(SIGTERM);
  const sigset_t child_ended = ChildEnded();
  CHECK(pthread_sigmask(SIG_UNBLOCK, &child_ended, nullptr) == 0);
  ExitCode code;
  {
    TerminationSignals signals(patience);
    code = FinishOutput(command(signals));
  }
  const auto byte = static_cast<uint8_t>(code);
  (void)!write(code_descriptor, &byte, sizeof(byte));
  // What a thread holds that waits for storage is not closed by the end of the others.
  if (FindBlockedCall(getpid()).has_value()) ReleaseDescriptors();
  return code;
}

}  // namespace

ExitCode RunSupervised(const GlobalOptions& global, absl::Duration patience,
                       const std::function<ExitCode(TerminationSignals&)>& command) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return Fail(global, ExitCode::kFailed, ErrnoStatus(errno, "pipe2"));
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  // Whoever started this program may have it ignored, and then no child can be waited for.
  CHECK(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
  BlockWatchedSignals();
  const sigset_t child_ended = ChildEnded();
  CHECK(pthread_sigmask(SIG_BLOCK, &child_ended, nullptr) == 0);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0)
    return Fail(global, ExitCode::kFailed, ErrnoStatus(errno, "cannot start a process: fork"));
  if (child == 0) {
    reading.Reset();
    return RunAsChild(parent, patience, writing.get(), command);
  }
  writing.Reset();
  return Supervisor(global, patience, child, std::move(reading)).Run();
}

}  // namespace forestage
