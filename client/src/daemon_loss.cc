#include "client/src/daemon_loss.h"

#include <utility>

namespace forestage {

void DaemonLoss::Lose(std::string reason) {
  absl::MutexLock lock(&mutex_);
  if (lost() || closed()) return;
  reason_ = std::move(reason);
  lost_.store(true, std::memory_order_release);
  interrupted_.store(true, std::memory_order_release);
}

void DaemonLoss::Close() {
  absl::MutexLock lock(&mutex_);
  closed_.store(true, std::memory_order_release);
  interrupted_.store(true, std::memory_order_release);
}

std::string DaemonLoss::reason() const {
  absl::MutexLock lock(&mutex_);
  return reason_;
}

}  // namespace forestage
