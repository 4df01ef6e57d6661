#include "daemon/staging/flight_budget.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include <gtest/gtest.h>

#include "common/units.h"
#include "daemon/staging/lane_waker.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {
namespace {

constexpr uint64_t kExtent = 8 * kMiB;
constexpr uint64_t kMountA = 1;
constexpr uint64_t kMountB = 2;

// Counts how often it was woken.
class WokenReader : public StorageReader {
 public:
  absl::string_view name() const override { return "woken"; }
  size_t in_flight_max() const override { return 0; }
  size_t in_flight() const override { return 0; }
  void Start(const ReadRequest&) override {}
  std::vector<ReadResult> Wait(absl::Time) override { return {}; }
  void Wake() override { ++wakes_; }
  void Cancel() override {}

  int wakes() const { return wakes_; }

 private:
  int wakes_ = 0;
};

// A checkpoint on one mount; gives back what it has taken when it goes.
class Checkpoint {
 public:
  Checkpoint(FlightBudget& budget, uint64_t mount,
             std::shared_ptr<LaneWaker> waker = std::make_shared<LaneWaker>(), uint64_t rate = 0)
      : share_(budget.Join(mount, rate, std::move(waker))) {}
  ~Checkpoint() { Give(taken_); }

  bool Take(bool urgent = false) {
    if (!share_->TryTake(kExtent, urgent, absl::Now()).taken) return false;
    ++taken_;
    return true;
  }
  // Takes all that there is a place for; how many extents that was.
  int TakeAll(bool urgent = false) {
    int count = 0;
    while (Take(urgent)) ++count;
    return count;
  }
  void Give(int extents) {
    for (int i = 0; i < extents; ++i) share_->Give(kExtent, kExtent, absl::Now());
    taken_ -= extents;
  }
  FlightBudget::Share& share() { return *share_; }

 private:
  const std::unique_ptr<FlightBudget::Share> share_;
  int taken_ = 0;
};

class FlightBudgetTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FlightBudget> budget_ =
      FlightBudget::Create({.mount_bytes_max = 4 * kExtent, .node_bytes_max = 6 * kExtent});
};

TEST_F(FlightBudgetTest, AMountsBudgetIsSharedByAllItsCheckpoints) {
  Checkpoint first(*budget_, kMountA);
  Checkpoint second(*budget_, kMountA);
  EXPECT_TRUE(first.Take());
  EXPECT_TRUE(second.Take());
  EXPECT_EQ(first.TakeAll() + second.TakeAll(), 2);
  ASSERT_EQ(budget_->Flights().size(), 1u);
  EXPECT_EQ(budget_->Flights()[0].in_flight_bytes, 4 * kExtent);
  EXPECT_EQ(budget_->Flights()[0].limit_bytes, 4 * kExtent);
}

TEST_F(FlightBudgetTest, WhoComesLaterGetsItsPart) {
  Checkpoint early(*budget_, kMountA);
  EXPECT_EQ(early.TakeAll(), 4);
  Checkpoint late(*budget_, kMountA);
  // One read always; then it waits, and the other does not take what it gives back.
  EXPECT_EQ(late.TakeAll(), 1);
  early.Give(2);
  EXPECT_EQ(early.TakeAll(), 0);
  EXPECT_EQ(late.TakeAll(), 1);
}

TEST_F(FlightBudgetTest, WhoWantsNothingAnyMoreLeavesItsPartToOthers) {
  Checkpoint early(*budget_, kMountA);
  EXPECT_EQ(early.TakeAll(), 4);
  Checkpoint late(*budget_, kMountA);
  EXPECT_EQ(late.TakeAll(), 1);
  late.Give(1);
  early.Give(2);
  EXPECT_EQ(early.TakeAll(), 0);
  late.share().Withdraw();
  EXPECT_EQ(early.TakeAll(), 2);
}

TEST_F(FlightBudgetTest, MountsShareTheNodesBudgetOnly) {
  Checkpoint on_a(*budget_, kMountA);
  Checkpoint on_b(*budget_, kMountB);
  EXPECT_EQ(on_a.TakeAll(), 4);
  EXPECT_EQ(on_b.TakeAll(), 2);
  on_a.Give(1);
  EXPECT_EQ(on_b.TakeAll(), 1);
}

TEST_F(FlightBudgetTest, AStuckReadKeepsItsPlaceOnItsOwnMountOnly) {
  Checkpoint stuck(*budget_, kMountA);
  Checkpoint healthy(*budget_, kMountB);
  EXPECT_EQ(stuck.TakeAll(), 4);
  for (int i = 0; i < 4; ++i) stuck.share().SetStuck(kExtent);
  EXPECT_EQ(stuck.TakeAll(), 0);
  EXPECT_EQ(healthy.TakeAll(), 4);
  ASSERT_EQ(budget_->Flights().size(), 2u);
  EXPECT_EQ(budget_->Flights()[0].stuck_bytes, 4 * kExtent);
  EXPECT_EQ(budget_->Flights()[1].stuck_bytes, 0u);
  for (int i = 0; i < 4; ++i) stuck.share().ClearStuck(kExtent);
  EXPECT_EQ(budget_->Flights()[0].stuck_bytes, 0u);
}

TEST_F(FlightBudgetTest, AnUrgentReadGoesBeyondTheLimitALittle) {
  Checkpoint checkpoint(*budget_, kMountA);
  EXPECT_EQ(checkpoint.TakeAll(), 4);
  EXPECT_EQ(checkpoint.TakeAll(/*urgent=*/true), 1);
}

TEST_F(FlightBudgetTest, WhoWaitsIsWokenWhenThereMayBeAPlace) {
  WokenReader reader;
  const auto waker = std::make_shared<LaneWaker>();
  waker->Attach(&reader);
  {
    Checkpoint other(*budget_, kMountA);
    Checkpoint waits(*budget_, kMountA, waker);
    EXPECT_EQ(other.TakeAll(), 4);
    EXPECT_TRUE(waits.Take());
    other.Give(1);
    EXPECT_EQ(reader.wakes(), 0);
    EXPECT_EQ(waits.TakeAll(), 0);
    other.Give(1);
    EXPECT_EQ(reader.wakes(), 1);
  }
  waker->Detach(&reader);
}

TEST_F(FlightBudgetTest, AnotherMountsReadWakesOnlyWhoLacksTheNodesBudget) {
  WokenReader reader;
  const auto waker = std::make_shared<LaneWaker>();
  waker->Attach(&reader);
  {
    Checkpoint elsewhere(*budget_, kMountB);
    EXPECT_TRUE(elsewhere.Take());
    Checkpoint waits(*budget_, kMountA, waker);
    // Its mount has no more for it: what ends elsewhere changes nothing.
    EXPECT_EQ(waits.TakeAll(), 4);
    elsewhere.Give(1);
    EXPECT_EQ(reader.wakes(), 0);
    // Now the node has no more.
    waits.Give(2);
    EXPECT_EQ(elsewhere.TakeAll(), 4);
    EXPECT_EQ(waits.TakeAll(), 0);
    const int before = reader.wakes();
    elsewhere.Give(1);
    EXPECT_GT(reader.wakes(), before);
  }
  waker->Detach(&reader);
}

// A mount of 10 extents a second, at times that the test gives.
class LimitedMountTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRate = 10 * kExtent;

  class Reader {
   public:
    explicit Reader(FlightBudget& budget, uint64_t rate = kRate)
        : share_(budget.Join(kMountA, rate, std::make_shared<LaneWaker>())) {}
    ~Reader() {
      while (in_flight_ > 0) End(absl::UnixEpoch(), kExtent);
    }
    FlightBudget::Place Begin(absl::Time now, bool urgent = false) {
      const FlightBudget::Place place = share_->TryTake(kExtent, urgent, now);
      if (place.taken) ++in_flight_;
      return place;
    }
    void End(absl::Time now, std::optional<uint64_t> read_bytes = kExtent) {
      share_->Give(kExtent, read_bytes, now);
      --in_flight_;
    }
    int in_flight() const { return in_flight_; }
    FlightBudget::Share& share() { return *share_; }

   private:
    const std::unique_ptr<FlightBudget::Share> share_;
    int in_flight_ = 0;
  };

  // Both begin what they may at once.
  static void UseUpCredit(Reader& reader, absl::Time now) {
    while (reader.Begin(now).taken) reader.End(now);
  }

  const absl::Time begin_ = absl::UnixEpoch() + absl::Hours(1);
  const std::shared_ptr<FlightBudget> budget_ =
      FlightBudget::Create({.mount_bytes_max = 64 * kExtent, .node_bytes_max = 64 * kExtent});
};

TEST_F(LimitedMountTest, SaysWhenToAskAgain) {
  Reader reader(*budget_);
  UseUpCredit(reader, begin_);
  const FlightBudget::Place place = reader.Begin(begin_);
  EXPECT_FALSE(place.taken);
  EXPECT_EQ(place.again, begin_ + absl::Milliseconds(100));
  EXPECT_TRUE(budget_->Flights()[0].held_back);
  EXPECT_EQ(budget_->Flights()[0].bytes_per_second_max, kRate);
  EXPECT_TRUE(reader.Begin(place.again).taken);
  EXPECT_FALSE(budget_->Flights()[0].held_back);
}

TEST_F(LimitedMountTest, WithoutALimitNobodyIsHeldBack) {
  Reader reader(*budget_, 0);
  while (reader.in_flight() < 4) ASSERT_TRUE(reader.Begin(begin_).taken);
  EXPECT_EQ(reader.Begin(begin_).again, absl::InfiniteFuture());
  EXPECT_FALSE(budget_->Flights()[0].held_back);
  EXPECT_EQ(budget_->Flights()[0].bytes_per_second_max, 0u);
}

TEST_F(LimitedMountTest, AnUrgentReadIsTheNextOfAllCheckpointsButNeverTooEarly) {
  Reader bulk(*budget_);
  Reader waits(*budget_);
  UseUpCredit(bulk, begin_);
  // The one whose turn it would be, and one that a rank waits for.
  Reader early(*budget_);
  EXPECT_FALSE(early.Begin(begin_).taken);
  EXPECT_FALSE(waits.Begin(begin_, /*urgent=*/true).taken);
  const absl::Time next = begin_ + absl::Milliseconds(100);
  EXPECT_FALSE(bulk.Begin(next).taken);
  EXPECT_FALSE(early.Begin(next).taken);
  EXPECT_TRUE(waits.Begin(next, /*urgent=*/true).taken);
}

TEST_F(LimitedMountTest, CheckpointsTakeTurns) {
  Reader readers[3] = {Reader(*budget_), Reader(*budget_), Reader(*budget_)};
  UseUpCredit(readers[0], begin_);
  int counts[3] = {};
  absl::Time now = begin_;
  for (int i = 0; i < 300; ++i) {
    // The first always asks first, and each as often as he likes.
    now += absl::Milliseconds(10);
    for (int k = 0; k < 3; ++k) {
      if (!readers[k].Begin(now).taken) continue;
      readers[k].End(now);
      ++counts[k];
    }
  }
  for (const int count : counts) EXPECT_EQ(count, 10);
}

TEST_F(LimitedMountTest, WhoDoesNotComeWhenItIsHisTurnHoldsNobodyUp) {
  Reader moves(*budget_);
  Reader stands_still(*budget_);
  UseUpCredit(moves, begin_);
  EXPECT_FALSE(stands_still.Begin(begin_, /*urgent=*/true).taken);
  absl::Time now = begin_;
  int reads = 0;
  while (now < begin_ + absl::Seconds(10)) {
    const FlightBudget::Place place = moves.Begin(now);
    if (place.taken) {
      moves.End(now);
      ++reads;
    } else {
      now = place.again;
    }
  }
  EXPECT_GE(reads, 99);
  EXPECT_LE(reads, 101);
}

TEST_F(LimitedMountTest, WhatIsInMemoryCountsNothingAndWhatFailedCountsWhole) {
  Reader reader(*budget_);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(reader.Begin(begin_).taken) << i;
    reader.End(begin_, 0);
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(reader.share().TryTake(kExtent, false, begin_).taken) << i;
    reader.share().GiveBack(kExtent, begin_);
  }
  int failed = 0;
  while (reader.Begin(begin_).taken) {
    reader.End(begin_, std::nullopt);
    ++failed;
  }
  EXPECT_EQ(failed, 2);
}

TEST_F(LimitedMountTest, WhoIsHeldBackIsWokenWhenOthersNeededLess) {
  WokenReader lane;
  const auto waker = std::make_shared<LaneWaker>();
  waker->Attach(&lane);
  {
    Reader reads(*budget_);
    Checkpoint waits(*budget_, kMountA, waker);
    while (reads.Begin(begin_).taken) {
    }
    EXPECT_FALSE(waits.share().TryTake(kExtent, false, begin_).taken);
    reads.End(begin_, kExtent);
    EXPECT_EQ(lane.wakes(), 0);
    reads.End(begin_, 0);
    EXPECT_EQ(lane.wakes(), 1);
    EXPECT_TRUE(waits.share().TryTake(kExtent, false, begin_).taken);
    waits.share().Give(kExtent, 0, begin_);
  }
  waker->Detach(&lane);
}

// Reads from a device that answers each read after `latency`, as fast as the budget lets it, for so
// many extents; the limits of bytes in flight that were in force.
std::vector<uint64_t> LimitsWhileReading(FlightBudget& budget, uint64_t rate,
                                         absl::Duration latency, int extents) {
  const auto share = budget.Join(kMountA, rate, std::make_shared<LaneWaker>());
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  std::deque<absl::Time> ends;
  std::vector<uint64_t> limits;
  while (extents > 0) {
    FlightBudget::Place place;
    while ((place = share->TryTake(kExtent, false, now)).taken) ends.push_back(now + latency);
    now = ends.empty() ? place.again : std::min(ends.front(), place.again);
    while (!ends.empty() && ends.front() <= now) {
      ends.pop_front();
      share->Give(kExtent, kExtent, now);
      --extents;
    }
    limits.push_back(share->limit_bytes());
  }
  while (!ends.empty()) {
    ends.pop_front();
    share->Give(kExtent, kExtent, now);
  }
  return limits;
}

TEST_F(LimitedMountTest, BytesInFlightNeitherGrowNorShrinkWhereBytesASecondAreTheLimit) {
  // Without the limit: as many in flight as there may be.
  const absl::Duration latency = absl::Milliseconds(100);
  const std::vector<uint64_t> free = LimitsWhileReading(*budget_, 0, latency, 3000);
  EXPECT_GT(free.back(), free.front());
  // 32 MiB in flight would give 320 MiB a second.
  for (const uint64_t rate : {kExtent, 10 * kExtent, 30 * kExtent}) {
    const std::vector<uint64_t> limited = LimitsWhileReading(*budget_, rate, latency, 3000);
    EXPECT_EQ(*std::min_element(limited.begin(), limited.end()), limited.front()) << rate;
    EXPECT_EQ(*std::max_element(limited.begin(), limited.end()), limited.front()) << rate;
  }
}

}  // namespace
}  // namespace forestage
