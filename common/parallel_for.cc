#include "common/parallel_for.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/check.h"

namespace forestage {
namespace {

// The caller is slow when it does fewer than so many indexes in so long. Storage that waits for a
// device or a server does none or one.
constexpr absl::Duration kLookPeriod = absl::Microseconds(300);
constexpr size_t kFastIndexesMin = 16;

class Work {
 public:
  Work(size_t count, size_t threads_max, const std::function<void(size_t)>& body)
      : count_(count), threads_max_(std::min(count, threads_max)), body_(body) {}

  // On the caller's thread.
  void RunWithOthers() ABSL_LOCKS_EXCLUDED(mutex_) {
    pthread_t watcher = {};
    // pthread_create reports a full process table as a number; std::thread would throw.
    const bool watched =
        threads_max_ > 1 && pthread_create(&watcher, nullptr, &Work::Watch, this) == 0;
    Run();
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    }
    if (watched) pthread_join(watcher, nullptr);
  }

 private:
  void Run() {
    while (true) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count_) return;
      body_(index);
    }
  }

  static void* Watch(void* work) {
    static_cast<Work*>(work)->BringOthersWhenSlow();
    return nullptr;
  }
  static void* RunOne(void* work) {
    static_cast<Work*>(work)->Run();
    return nullptr;
  }

  void BringOthersWhenSlow() ABSL_LOCKS_EXCLUDED(mutex_) {
    size_t seen = 0;
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(absl::Condition(&finished_), kLookPeriod)) return;
      }
      const size_t now = next_.load(std::memory_order_relaxed);
      if (now - seen < kFastIndexesMin) break;
      seen = now;
    }
    std::vector<pthread_t> threads;
    // Beside the caller and this one.
    for (size_t i = 2; i < threads_max_; ++i) {
      if (next_.load(std::memory_order_relaxed) >= count_) break;
      pthread_t thread = {};
      if (pthread_create(&thread, nullptr, &Work::RunOne, this) != 0) break;
      threads.push_back(thread);
    }
    Run();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }

  const size_t count_;
  const size_t threads_max_;
  const std::function<void(size_t)>& body_;
  std::atomic<size_t> next_ = 0;

  absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void ParallelFor(size_t count, size_t threads_max, const std::function<void(size_t index)>& body) {
  CHECK(threads_max >= 1);
  Work(count, threads_max, body).RunWithOthers();
}

}  // namespace forestage
