#include "daemon/session/worker_pool.h"

#include <utility>

#include "common/check.h"

namespace forestage {

WorkerPool::WorkerPool(size_t threads_max) : threads_max_(threads_max) { CHECK(threads_max > 0); }

WorkerPool::~WorkerPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void WorkerPool::Submit(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  CHECK(!stopping_);
  queue_.push_back(std::move(work));
  if (running_ + queue_.size() > threads_.size() && threads_.size() < threads_max_) {
    threads_.emplace_back([this] { Run(); });
  }
}

bool WorkerPool::WaitUntilIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(this, &WorkerPool::IsIdle), deadline);
}

bool WorkerPool::HasWorkOrStops() const { return stopping_ || !queue_.empty(); }

bool WorkerPool::IsIdle() const { return queue_.empty() && running_ == 0; }

void WorkerPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &WorkerPool::HasWorkOrStops));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      ++running_;
    }
    work();
    // What the work holds is part of it: it may block on storage as well.
    work = nullptr;
    absl::MutexLock lock(&mutex_);
    --running_;
  }
}

}  // namespace forestage
