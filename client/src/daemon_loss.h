// Whether a session may still count on the daemon; told by its connection, looked at by waiters.
#pragma once

#include <atomic>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace forestage {

// Serving until the daemon is lost or the session is closed, for good. Thread-safe.
class DaemonLoss {
 public:
  // The daemon serves this session no more; the first reason is kept. Without effect after Close().
  void Lose(std::string reason);
  // The session itself ends.
  void Close();

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Empty unless lost.
  std::string reason() const;
  // True after Lose or Close: whoever waits for the daemon looks again.
  const std::atomic<bool>& interrupted() const { return interrupted_; }

 private:
  mutable absl::Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> lost_ = false;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace forestage
