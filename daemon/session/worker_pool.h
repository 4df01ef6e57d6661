// Threads for work that blocks on storage, so that the threads of the sockets never do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "daemon/session/work_queue.h"

namespace forestage {

// Starts threads as work comes, up to a maximum; they stay. Work is begun in the order of Submit,
// but work of an owner who has as many threads as one owner may have waits, and others overtake it.
// Thread-safe.
class WorkerPool : public WorkQueue {
 public:
  // The owner of work that nobody in particular made necessary.
  static constexpr uint64_t kNobody = UINT64_MAX;

  explicit WorkerPool(size_t threads_max) : WorkerPool(threads_max, threads_max) {}
  WorkerPool(size_t threads_max, size_t threads_per_owner_max);
  // Runs all that was submitted, then ends. Blocks until every thread has.
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Submit(std::function<void()> work) { Submit(kNobody, std::move(work)); }
  void Submit(uint64_t owner, std::function<void()> work) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitUntilIdle(absl::Time deadline) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  struct Item {
    uint64_t owner = 0;
    std::function<void()> work;
  };
  // The first that may be begun, or the queue's end.
  std::deque<Item>::const_iterator Next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t threads_max_;
  const size_t threads_per_owner_max_;
  absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, size_t> running_of_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forestage
