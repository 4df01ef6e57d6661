#include "common/parallel_for.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(ParallelForTest, CallsEachIndexOnceWhateverTheCounts) {
  for (const size_t count : {0, 1, 2, 3, 100, 5000}) {
    for (const size_t threads_max : {1, 2, 16}) {
      std::vector<std::atomic<int>> calls(count);
      ParallelFor(count, threads_max, [&](size_t index) { calls[index].fetch_add(1); });
      for (const std::atomic<int>& one : calls) EXPECT_EQ(one.load(), 1);
    }
  }
}

TEST(ParallelForTest, SlowIndexesRunAtOnceInAsManyThreadsAsAllowed) {
  constexpr size_t kThreads = 6;
  // Opens when all are there: a thread too few, and this waits for ever.
  absl::Mutex mutex;
  size_t there = 0;
  ParallelFor(kThreads, kThreads, [&](size_t) {
    absl::MutexLock lock(&mutex);
    ++there;
    mutex.Await(absl::Condition(
        +[](size_t* count) { return *count == kThreads; }, &there));
  });
  EXPECT_EQ(there, kThreads);
}

TEST(ParallelForTest, OthersComeWhenFastIndexesAreFollowedBySlowOnes) {
  constexpr size_t kFast = 10'000;
  absl::Mutex mutex;
  size_t there = 0;
  ParallelFor(kFast + 3, 3, [&](size_t index) {
    if (index < kFast) return;
    absl::MutexLock lock(&mutex);
    ++there;
    mutex.Await(absl::Condition(
        +[](size_t* count) { return *count == 3; }, &there));
  });
  EXPECT_EQ(there, 3u);
}

TEST(ParallelForTest, NeverUsesMoreThreadsThanAllowed) {
  std::atomic<size_t> inside = 0;
  std::atomic<size_t> most = 0;
  ParallelFor(2000, 3, [&](size_t) {
    const size_t now = inside.fetch_add(1) + 1;
    size_t seen = most.load();
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    for (int i = 0; i < 2000; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    inside.fetch_sub(1);
  });
  EXPECT_LE(most.load(), 3u);
}

}  // namespace
}  // namespace forestage
