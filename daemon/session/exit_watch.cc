#include "daemon/session/exit_watch.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common/errno_status.h"

namespace forestage {
namespace {

// No session has this number.
constexpr uint64_t kWakeKey = UINT64_MAX;
constexpr int64_t kWaitMillisecondsMax = 60'000;

}  // namespace

ExitWatch::ExitWatch(UniqueFd epoll, UniqueFd wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

absl::StatusOr<std::unique_ptr<ExitWatch>> ExitWatch::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "eventfd");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeKey;
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl");
  }
  return std::unique_ptr<ExitWatch>(new ExitWatch(std::move(epoll), std::move(wake)));
}

absl::Status ExitWatch::Watch(SessionId session, const PeerIdentity& peer) {
  if (peer.pidfd == nullptr) return absl::OkStatus();
  UniqueFd duplicate(fcntl(peer.pidfd->get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid()) return ErrnoStatus(errno, "duplicating a pidfd");
  absl::MutexLock lock(&mutex_);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = session;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, duplicate.get(), &event) != 0) {
    return ErrnoStatus(errno, "epoll_ctl on a pidfd");
  }
  pidfds_[session] = std::move(duplicate);
  return absl::OkStatus();
}

void ExitWatch::Forget(SessionId session) {
  absl::MutexLock lock(&mutex_);
  const auto found = pidfds_.find(session);
  if (found == pidfds_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.get(), nullptr);
  pidfds_.erase(found);
}

std::vector<SessionId> ExitWatch::Wait(absl::Time deadline) {
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::ZeroDuration(),
                                         absl::Milliseconds(kWaitMillisecondsMax));
  // Rounded up, or the last millisecond would be a busy loop.
  const int timeout_ms =
      static_cast<int>(absl::ToInt64Milliseconds(left + absl::Microseconds(999)));
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  std::vector<SessionId> exited;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 == kWakeKey) {
      uint64_t value = 0;
      (void)!read(wake_.get(), &value, sizeof(value));
    } else {
      exited.push_back(event.data.u64);
    }
  }
  return exited;
}

void ExitWatch::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

}  // namespace forestage
