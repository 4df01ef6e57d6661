#include "daemon/session/worker_pool.h"

#include <utility>

#include "common/check.h"

namespace forestage {

WorkerPool::WorkerPool(size_t threads_max, size_t threads_per_owner_max)
    : threads_max_(threads_max), threads_per_owner_max_(threads_per_owner_max) {
  CHECK(threads_max > 0 && threads_per_owner_max > 0);
}

WorkerPool::~WorkerPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::Submit(uint64_t owner, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  CHECK(!stopping_);
  queue_.push_back({owner, std::move(work)});
  if (running_ + queue_.size() > threads_.size() && threads_.size() < threads_max_) {
    threads_.emplace_back([this] { Run(); });
  }
}

bool WorkerPool::WaitUntilIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(this, &WorkerPool::IsIdle), deadline);
}

std::deque<WorkerPool::Item>::const_iterator WorkerPool::Next() const {
  for (auto item = queue_.begin(); item != queue_.end(); ++item) {
    const auto running = running_of_.find(item->owner);
    if (running == running_of_.end() || running->second < threads_per_owner_max_) return item;
  }
  return queue_.end();
}

bool WorkerPool::HasWorkOrStops() const {
  return Next() != queue_.end() || (stopping_ && queue_.empty());
}

bool WorkerPool::IsIdle() const { return queue_.empty() && running_ == 0; }

void WorkerPool::Run() {
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &WorkerPool::HasWorkOrStops));
      if (queue_.empty()) return;
      const auto next = Next();
      item = *next;
      queue_.erase(next);
      ++running_;
      ++running_of_[item.owner];
    }
    item.work();
    // What the work holds is part of it: it may block on storage as well.
    item.work = nullptr;
    absl::MutexLock lock(&mutex_);
    --running_;
    if (--running_of_[item.owner] == 0) running_of_.erase(item.owner);
  }
}

}  // namespace forestage
