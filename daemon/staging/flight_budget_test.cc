#include "daemon/staging/flight_budget.h"

#include <cstdint>
#include <memory>
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
             std::shared_ptr<LaneWaker> waker = std::make_shared<LaneWaker>())
      : share_(budget.Join(mount, std::move(waker))) {}
  ~Checkpoint() { Give(taken_); }

  bool Take(bool urgent = false) {
    if (!share_->TryTake(kExtent, urgent)) return false;
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

}  // namespace
}  // namespace forestage
