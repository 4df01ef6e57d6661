#include "common/parallel_for.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/check.h"

namespace forestage {
namespace {

struct Work {
  size_t count;
  const std::function<void(size_t index)>& body;
  std::atomic<size_t> next = 0;

  void Run() {
    while (true) {
      const size_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      body(index);
    }
  }
};

void* RunWork(void* work) {
  static_cast<Work*>(work)->Run();
  return nullptr;
}

}  // namespace

void ParallelFor(size_t count, size_t threads_max, const std::function<void(size_t index)>& body) {
  CHECK(threads_max >= 1);
  Work work = {.count = count, .body = body};
  // pthread_create reports a full process table as a number; std::thread would throw.
  std::vector<pthread_t> threads;
  const size_t extra = count == 0 ? 0 : std::min(threads_max, count) - 1;
  threads.reserve(extra);
  for (size_t i = 0; i < extra; ++i) {
    pthread_t thread = {};
    if (pthread_create(&thread, nullptr, RunWork, &work) != 0) break;
    threads.push_back(thread);
  }
  work.Run();
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
}

}  // namespace forestage
