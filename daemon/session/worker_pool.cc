#include "daemon/session/worker_pool.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include <spdlog/spdlog.h>

#include "common/check.h"
#include "common/thread_start.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

// Ranks of a group come one after the other, and a thread costs less than this to start.
constexpr absl::Duration kIdlePatience = absl::Seconds(1);

template <typename Key>
size_t CountOf(const std::map<Key, size_t>& counts, const Key& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

template <typename Key>
void Subtract(std::map<Key, size_t>& counts, const Key& key) {
  if (--counts[key] == 0) counts.erase(key);
}

}  // namespace

WorkerPool::WorkerPool(const WorkLimits& limits) : limits_(limits) {
  CHECK(limits.threads_max > 0 && limits.threads_per_user_max > 0 &&
        limits.threads_per_storage_max > 0);
}

WorkerPool::~WorkerPool() {
  // A thread moves itself to ended_ as the last thing it does under the lock.
  while (true) {
    Threads threads;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      const auto some_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !ended_.empty() || threads_.empty();
      };
      mutex_.Await(absl::Condition(&some_ended));
      if (ended_.empty()) break;
      threads.swap(ended_);
    }
    for (std::thread& thread : threads) thread.join();
  }
  // No thread could be started for what is left.
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mutex_);
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    item.work();
  }
}

void WorkerPool::Submit(WorkOwner owner, std::function<void()> work) {
  Threads ended;
  {
    absl::MutexLock lock(&mutex_);
    CHECK(!stopping_);
    ended.swap(ended_);
    queue_.push_back({owner, std::move(work)});
    if (running_ + queue_.size() > threads_.size() && threads_.size() < limits_.threads_max) {
      const auto self = threads_.emplace(threads_.end());
      absl::StatusOr<std::thread> started = StartThread([this, self] { Run(self); });
      if (started.ok()) {
        *self = *std::move(started);
      } else {
        // The others do it, or the next that can be started.
        threads_.erase(self);
        const absl::Time now = absl::Now();
        if (now >= next_log_) {
          next_log_ = now + kRefusalLogPeriod;
          spdlog::warn("thread refused error=\"{}\" threads={} queued={}",
                       absl::CEscape(started.status().message()), threads_.size(), queue_.size());
        }
      }
    }
  }
  for (std::thread& thread : ended) thread.join();
}

bool WorkerPool::WaitUntilIdle(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithDeadline(absl::Condition(this, &WorkerPool::IsIdle), deadline);
}

size_t WorkerPool::thread_count() const {
  absl::MutexLock lock(&mutex_);
  return threads_.size();
}

std::deque<WorkerPool::Item>::const_iterator WorkerPool::Next() const {
  for (auto item = queue_.begin(); item != queue_.end(); ++item) {
    if (CountOf(running_of_user_, item->owner.user) >= limits_.threads_per_user_max) continue;
    if (item->owner.storage != WorkOwner::kUnknown &&
        CountOf(running_of_owner_, item->owner) >= limits_.threads_per_storage_max) {
      continue;
    }
    return item;
  }
  return queue_.end();
}

bool WorkerPool::HasWorkOrStops() const {
  return Next() != queue_.end() || (stopping_ && queue_.empty());
}

bool WorkerPool::IsIdle() const { return queue_.empty() && running_ == 0; }

void WorkerPool::Run(Threads::iterator self) {
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mutex_);
      // One that ends while work waits for its owner's others would be missed later.
      while (!mutex_.AwaitWithTimeout(absl::Condition(this, &WorkerPool::HasWorkOrStops),
                                      kIdlePatience) &&
             !queue_.empty()) {
      }
      if (queue_.empty()) {
        ended_.splice(ended_.end(), threads_, self);
        return;
      }
      const auto next = Next();
      item = *next;
      queue_.erase(next);
      ++running_;
      ++running_of_user_[item.owner.user];
      ++running_of_owner_[item.owner];
    }
    item.work();
    // What the work holds is part of it: it may block on storage as well.
    item.work = nullptr;
    absl::MutexLock lock(&mutex_);
    --running_;
    Subtract(running_of_user_, item.owner.user);
    Subtract(running_of_owner_, item.owner);
  }
}

}  // namespace forestage
