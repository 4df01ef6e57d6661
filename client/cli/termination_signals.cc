#include "client/cli/termination_signals.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "absl/time/clock.h"

#include "common/check.h"

namespace forestage {

struct TerminationSignals::Masks {
  sigset_t watched;
  sigset_t previous;
};

TerminationSignals::TerminationSignals() : masks_(std::make_unique<Masks>()) {
  sigemptyset(&masks_->watched);
  sigaddset(&masks_->watched, SIGINT);
  sigaddset(&masks_->watched, SIGTERM);
  // A shell starts what runs in its background with SIGINT ignored, and then it never comes.
  CHECK(signal(SIGINT, SIG_DFL) != SIG_ERR);
  CHECK(pthread_sigmask(SIG_BLOCK, &masks_->watched, &masks_->previous) == 0);
}

TerminationSignals::~TerminationSignals() {
  pthread_sigmask(SIG_SETMASK, &masks_->previous, nullptr);
}

bool TerminationSignals::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!received_) {
    const timespec left = absl::ToTimespec(std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (sigtimedwait(&masks_->watched, nullptr, &left) > 0) received_ = true;
    // EINTR: another signal; EAGAIN: the time is over.
    else if (errno != EINTR)
      return false;
  }
  return true;
}

}  // namespace forestage
