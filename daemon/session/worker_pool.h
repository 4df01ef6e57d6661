// Threads for work that blocks on storage, so that the threads of the sockets never do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "daemon/session/work_queue.h"

namespace forestage {

// Starts threads as work comes, up to a maximum; one that had nothing to do for a second ends. Work
// is begun in the order of Submit, but work whose owner has as many threads as he may have waits,
// and others overtake it. Thread-safe.
class WorkerPool : public WorkQueue {
 public:
  explicit WorkerPool(const WorkLimits& limits);
  // Runs all that was submitted, then ends. Blocks until every thread has.
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Submit(std::function<void()> work) { Submit(WorkOwner{}, std::move(work)); }
  void Submit(WorkOwner owner, std::function<void()> work) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool WaitUntilIdle(absl::Time deadline) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Those that work or wait for some.
  size_t thread_count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Threads = std::list<std::thread>;
  struct Item {
    WorkOwner owner;
    std::function<void()> work;
  };

  void Run(Threads::iterator self) ABSL_LOCKS_EXCLUDED(mutex_);
  // The first that may be begun, or the queue's end.
  std::deque<Item>::const_iterator Next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WorkLimits limits_;
  mutable absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, size_t> running_of_user_ ABSL_GUARDED_BY(mutex_);
  std::map<WorkOwner, size_t> running_of_owner_ ABSL_GUARDED_BY(mutex_);
  Threads threads_ ABSL_GUARDED_BY(mutex_);
  // Those that have ended, or are about to without this mutex; to be joined.
  Threads ended_ ABSL_GUARDED_BY(mutex_);
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_log_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace forestage
