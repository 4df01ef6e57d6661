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

TEST(WorkerPoolTest, RunsUpToItsMaximumAtOnce) {
  absl::BlockingCounter all_run(3);
  absl::Notification go_on;
  WorkerPool pool(3);
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
  WorkerPool pool(1);
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

TEST(WorkerPoolTest, OneOwnerCannotHoldAllThreads) {
  absl::Notification go_on;
  absl::Notification other_ran;
  std::atomic<int> hung = 0;
  WorkerPool pool(3, 2);
  for (int i = 0; i < 10; ++i) {
    pool.Submit(7, [&] {
      ++hung;
      go_on.WaitForNotification();
    });
  }
  pool.Submit(8, [&] { other_ran.Notify(); });
  EXPECT_TRUE(other_ran.WaitForNotificationWithTimeout(kPatience));
  EXPECT_LE(hung, 2);
  go_on.Notify();
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_EQ(hung, 10);
}

TEST(WorkerPoolTest, WhatWorkHoldsIsGoneWhenItIsIdle) {
  WorkerPool pool(2);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  pool.Submit([held = std::move(held)] {});
  EXPECT_TRUE(pool.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_TRUE(watch.expired());
}

TEST(WorkerPoolTest, EndRunsWhatWasSubmitted) {
  std::atomic<int> ran = 0;
  {
    WorkerPool pool(2);
    for (int i = 0; i < 50; ++i) pool.Submit([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace forestage
