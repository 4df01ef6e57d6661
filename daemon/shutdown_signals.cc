#include "daemon/shutdown_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/thread_start.h"

namespace forestage {

namespace {

sigset_t TerminationSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShutdownSignals>> ShutdownSignals::Create() {
  const sigset_t set = TerminationSet();
  const int refused = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (refused != 0) return ErrnoStatus(refused, "pthread_sigmask");
  if (signal(SIGPIPE, SIG_IGN) == SIG_ERR) return ErrnoStatus(errno, "ignoring SIGPIPE");
  UniqueFd signals(signalfd(-1, &set, SFD_CLOEXEC));
  if (!signals.valid()) return ErrnoStatus(errno, "signalfd");
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<ShutdownSignals>(new ShutdownSignals(std::move(signals), std::move(stop)));
}

ShutdownSignals::ShutdownSignals(UniqueFd signals, UniqueFd stop)
    : signals_(std::move(signals)), stop_(std::move(stop)) {}

ShutdownSignals::~ShutdownSignals() {
  if (!exit_thread_.joinable()) return;
  const uint64_t one = 1;
  CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  exit_thread_.join();
}

const char* ShutdownSignals::Wait() {
  signalfd_siginfo info = {};
  ssize_t bytes = 0;
  while ((bytes = read(signals_.get(), &info, sizeof(info))) < 0) CHECK(errno == EINTR);
  CHECK(bytes == sizeof(info));
  return info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
}

void ShutdownSignals::ExitAtNextSignal(absl::Duration grace) {
  CHECK(!exit_thread_.joinable());
  absl::StatusOr<std::thread> started =
      StartThread([this, deadline = absl::Now() + grace] { ExitLoop(deadline); });
  if (started.ok()) {
    exit_thread_ = *std::move(started);
    return;
  }
  spdlog::warn("nothing ends a drain that storage holds up but the next signal: {}",
               std::string(started.status().message()));
  const sigset_t set = TerminationSet();
  CHECK(pthread_sigmask(SIG_UNBLOCK, &set, nullptr) == 0);
}

void ShutdownSignals::ExitLoop(absl::Time deadline) const {
  while (true) {
    pollfd entries[] = {{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                        {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const int timeout_ms = static_cast<int>(
        std::min<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 60'000));
    const int ready = poll(entries, 2, timeout_ms);
    if (ready < 0) {
      CHECK(errno == EINTR);
      continue;
    }
    if (entries[1].revents != 0) return;
    if (entries[0].revents != 0) {
      spdlog::warn("second signal: ending at once, without the rest of the drain");
      _exit(kSecondSignalExitCode);
    }
    if (absl::Now() < deadline) continue;
    spdlog::warn("some threads still wait for storage; ending without them");
    _exit(0);
  }
}

}  // namespace forestage
