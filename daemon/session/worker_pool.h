// Threads for work that blocks on storage, so that the threads of the sockets never do.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace forestage {

// Starts threads as work comes, up to a maximum; they stay. Work is begun in the order of Submit.
// Thread-safe.
class WorkerPool {
 public:
  explicit WorkerPool(size_t threads_max);
  // Runs all that was submitted, then ends. Blocks until every thread has.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The caller bounds how much it submits.
  void Submit(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until nothing is queued or running; false when the deadline has passed before.
  bool WaitUntilIdle(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t threads_max_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forestage
