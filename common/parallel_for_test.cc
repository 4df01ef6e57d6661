#include "common/parallel_for.h"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "common/status_matchers.h"

namespace forestage {
namespace {

TEST(ParallelForTest, CallsEachIndexOnce) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}}) {
    std::vector<std::atomic<int>> calls(count);
    ParallelFor(count, 16, [&](size_t index) { ++calls[index]; });
    for (const std::atomic<int>& called : calls) EXPECT_EQ(called, 1);
  }
}

TEST(ParallelForTest, UsesNoMoreThreadsThanItMayAndTheCallersAmongThem) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ParallelFor(100, 3, [&](size_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_LE(threads.size(), 3u);
  threads.clear();
  ParallelFor(10, 1, [&](size_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads, std::set<std::thread::id>{std::this_thread::get_id()});
}

}  // namespace
}  // namespace forestage
