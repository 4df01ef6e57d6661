#include "daemon/session/worker_pool.h"

#include <atomic>
#include <memory>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

WorkLimits LimitsOf(size_t threads_max) {
  return {.threads_max = threads_max,
          .threads_per_user_max = threads_max,
          .threads_per_storage_max = threads_max};
}

TEST(WorkerPoolTest, RunsUpToItsMaximumAtOnce) {
  absl::BlockingCounter all_run(3);
  absl::Notification go_on;
  WorkerPool pool(LimitsOf(3));
  for (int i = 0; i < 3; ++i) {
    pool.Submit([&] {
      all_run.DecrementCount();
      go_on.WaitForNotification();
    });
  }
  all_run.Wait();
  EXPECT_FALSE(pool.WaitUntilIdle(absl::Now()));
  go_on.Notify();
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
}

TEST(WorkerPoolTest, QueuesBeyondItsMaximumInOrder) {
  absl::Notification go_on;
  std::atomic<int> last = 0;
  std::atomic<bool> in_order = true;
  WorkerPool pool(LimitsOf(1));
  pool.Submit([&] { go_on.WaitForNotification(); });
  for (int i = 1; i <= 100; ++i) {
    pool.Submit([&last, &in_order, i] {
      if (last.exchange(i) != i - 1) in_order = false;
    });
  }
  EXPECT_EQ(last, 0);
  go_on.Notify();
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_EQ(last, 100);
  EXPECT_TRUE(in_order);
}

// Ten pieces of work of `hung` that hang, then one of `other`, which must be done meanwhile.
void ExpectOtherGoesOn(const WorkLimits& limits, WorkOwner hung, WorkOwner other, int hung_max) {
  absl::Notification go_on;
  absl::Notification other_ran;
  std::atomic<int> hanging = 0;
  WorkerPool pool(limits);
  for (int i = 0; i < 10; ++i) {
    pool.Submit(hung, [&] {
      ++hanging;
      go_on.WaitForNotification();
    });
  }
  pool.Submit(other, [&] { other_ran.Notify(); });
  EXPECT_TRUE(other_ran.WaitForNotificationWithTimeout(kPatience));
  EXPECT_LE(hanging, hung_max);
  go_on.Notify();
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_EQ(hanging, 10);
}

TEST(WorkerPoolTest, OneUserCannotHoldAllThreads) {
  const WorkLimits limits = {
      .threads_max = 3, .threads_per_user_max = 2, .threads_per_storage_max = 2};
  ExpectOtherGoesOn(limits, {.user = 7, .storage = 1}, {.user = 8, .storage = 1}, 2);
}

TEST(WorkerPoolTest, OneStorageCannotHoldAllThreadsOfItsUser) {
  const WorkLimits limits = {
      .threads_max = 3, .threads_per_user_max = 3, .threads_per_storage_max = 2};
  ExpectOtherGoesOn(limits, {.user = 7, .storage = 1}, {.user = 7, .storage = 2}, 2);
}

TEST(WorkerPoolTest, StorageThatIsNotKnownIsNotOneStorage) {
  absl::BlockingCounter all_run(3);
  absl::Notification go_on;
  WorkerPool pool({.threads_max = 3, .threads_per_user_max = 3, .threads_per_storage_max = 1});
  for (int i = 0; i < 3; ++i) {
    pool.Submit({.user = 7}, [&] {
      all_run.DecrementCount();
      go_on.WaitForNotification();
    });
  }
  all_run.Wait();
  go_on.Notify();
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
}

TEST(WorkerPoolTest, ThreadsThatHaveNothingToDoEndAndOthersComeInTheirPlace) {
  std::atomic<int> ran = 0;
  WorkerPool pool(LimitsOf(3));
  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < 10; ++i) pool.Submit([&ran] { ++ran; });
    EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
    EXPECT_EQ(ran, 10 * round);
    const absl::Time deadline = absl::Now() + kPatience;
    while (pool.thread_count() > 0 && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(pool.thread_count(), 0u);
  }
}

TEST(WorkerPoolTest, WhatWorkHoldsIsGoneWhenItIsIdle) {
  WorkerPool pool(LimitsOf(2));
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  pool.Submit([held = std::move(held)] {});
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_TRUE(watch.expired());
}

TEST(WorkerPoolTest, EndRunsWhatWasSubmitted) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(LimitsOf(2));
    for (int i = 0; i < 50; ++i) pool.Submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace forestage
