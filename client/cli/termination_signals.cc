#include "client/cli/termination_signals.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include "common/check.h"

namespace forestage {
namespace {

bool IsIgnored(int signal_number) {
  struct sigaction action = {};
  return sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

std::vector<int> OpenDescriptors() {
  std::vector<int> descriptors;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int descriptor = -1;
    if (absl::SimpleAtoi(entry.path().filename().string(), &descriptor))
      descriptors.push_back(descriptor);
  }
  return descriptors;
}

bool IsPipe(int descriptor) {
  std::array<char, PATH_MAX> target;
  const std::string link = absl::StrCat("/proc/self/fd/", descriptor);
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  return size > 0 && absl::StartsWith(absl::string_view(target.data(), size), "pipe:");
}

// Until `descriptor` can be read (true) or the time is over.
bool WaitReadable(int descriptor, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    pollfd watched = {.fd = descriptor, .events = POLLIN, .revents = 0};
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const int ready =
        poll(&watched, 1,
             static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

}  // namespace

sigset_t WatchedSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGINT);
  sigaddset(&watched, SIGTERM);
  for (const int number : {SIGHUP, SIGALRM}) {
    if (!IsIgnored(number)) sigaddset(&watched, number);
  }
  return watched;
}

void BlockWatchedSignals() {
  const sigset_t watched = WatchedSignals();
  CHECK(signal(SIGINT, SIG_DFL) != SIG_ERR);
  CHECK(pthread_sigmask(SIG_BLOCK, &watched, nullptr) == 0);
}

void UnblockWatchedSignals() {
  const sigset_t watched = WatchedSignals();
  CHECK(pthread_sigmask(SIG_UNBLOCK, &watched, nullptr) == 0);
}

void ReleaseDescriptors() {
  for (const int descriptor : OpenDescriptors()) {
    // An error is that of everything but sockets, which this leaves alone.
    (void)shutdown(descriptor, SHUT_RDWR);
    if (IsPipe(descriptor)) close(descriptor);
  }
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(descriptor);
}

void DieOf(int signal_number) {
  CHECK(signal(signal_number, SIG_DFL) != SIG_ERR || signal_number == SIGKILL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  CHECK(pthread_sigmask(SIG_UNBLOCK, &set, nullptr) == 0);
  (void)raise(signal_number);
  _exit(128 + signal_number);
}

TerminationSignals::TerminationSignals(absl::Duration patience) : patience_(patience) {
  const sigset_t watched = WatchedSignals();
  signals_.Reset(signalfd(-1, &watched, SFD_CLOEXEC));
  stop_.Reset(eventfd(0, EFD_CLOEXEC));
  CHECK(signals_.valid() && stop_.valid());
  watcher_ = std::thread([this] { Watch(); });
}

TerminationSignals::~TerminationSignals() {
  const uint64_t one = 1;
  CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  watcher_.join();
}

void TerminationSignals::Watch() {
  std::array<pollfd, 2> watched = {{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                                    {.fd = stop_.get(), .events = POLLIN, .revents = 0}}};
  while (poll(watched.data(), watched.size(), -1) < 0) CHECK(errno == EINTR);
  if (watched[1].revents != 0) return;
  signalfd_siginfo info = {};
  CHECK(read(signals_.get(), &info, sizeof(info)) == sizeof(info));
  received_.Notify();
  if (WaitReadable(stop_.get(), patience_)) return;
  ReleaseDescriptors();
  DieOf(static_cast<int>(info.ssi_signo));
}

}  // namespace forestage
