#include "common/recent_rate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::DoubleNear;
using ::testing::Optional;

constexpr double kMib = 1024 * 1024;

class RecentRateTest : public testing::Test {
 protected:
  // `bytes` every 10 ms for so long.
  void Grow(uint64_t bytes, absl::Duration how_long) {
    for (const absl::Time end = now_ + how_long; now_ < end;) {
      now_ += absl::Milliseconds(10);
      rate_.Add(bytes, now_);
    }
  }

  RecentRate rate_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
};

TEST_F(RecentRateTest, StepsMakeTheWindow) {
  EXPECT_EQ(RecentRate::kSteps * RecentRate::kStep, RecentRate::kWindow);
}

TEST_F(RecentRateTest, NothingHasNoRate) {
  EXPECT_EQ(rate_.BytesPerSecond(now_), 0);
  rate_.Begin(now_);
  EXPECT_EQ(rate_.BytesPerSecond(now_ + absl::Seconds(1)), 0);
  EXPECT_EQ(rate_.TimeLeft(1, now_), std::nullopt);
  EXPECT_THAT(rate_.TimeLeft(0, now_), Optional(absl::ZeroDuration()));
}

TEST_F(RecentRateTest, IsRightFromTheBeginning) {
  rate_.Begin(now_);
  Grow(1024 * 1024, absl::Milliseconds(300));
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * kMib, 0.1 * kMib));
  Grow(1024 * 1024, absl::Seconds(20));
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * kMib, 2 * kMib));
}

TEST_F(RecentRateTest, ShowsWhatIsNowAndNotTheAverage) {
  rate_.Begin(now_);
  Grow(1024 * 1024, absl::Seconds(60));
  Grow(1024, RecentRate::kWindow);
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * 1024, 1024));
}

TEST_F(RecentRateTest, FallsToZeroWhenNothingComesAnyMore) {
  rate_.Begin(now_);
  Grow(1024 * 1024, absl::Seconds(10));
  const double before = rate_.BytesPerSecond(now_);
  const double after = rate_.BytesPerSecond(now_ + RecentRate::kWindow / 2);
  EXPECT_LT(after, 0.6 * before);
  EXPECT_GT(after, 0.4 * before);
  EXPECT_EQ(rate_.BytesPerSecond(now_ + RecentRate::kWindow), 0);
  EXPECT_EQ(rate_.TimeLeft(1, now_ + RecentRate::kWindow), std::nullopt);
  EXPECT_EQ(rate_.BytesPerSecond(now_ + absl::Hours(1000)), 0);
}

TEST_F(RecentRateTest, TimeLeftFollowsTheRate) {
  rate_.Begin(now_);
  Grow(1024 * 1024, absl::Seconds(10));
  const std::optional<absl::Duration> left = rate_.TimeLeft(1000 * 1024 * 1024, now_);
  ASSERT_TRUE(left.has_value());
  EXPECT_THAT(absl::ToDoubleSeconds(*left), DoubleNear(10, 0.2));
}

TEST_F(RecentRateTest, OneLumpAtOnceIsNotInfinite) {
  rate_.Add(1000, now_);
  EXPECT_EQ(rate_.BytesPerSecond(now_), 1000 / absl::ToDoubleSeconds(RecentRate::kElapsedMin));
}

TEST_F(RecentRateTest, BeginningAnewForgetsWhatWasBefore) {
  rate_.Begin(now_);
  Grow(1024 * 1024, absl::Seconds(10));
  rate_.Begin(now_);
  EXPECT_EQ(rate_.BytesPerSecond(now_), 0);
  Grow(1024, absl::Seconds(1));
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * 1024, 1024));
}

TEST_F(RecentRateTest, SurvivesAClockThatIsSetBackOrFarAhead) {
  rate_.Begin(now_);
  Grow(1024, absl::Seconds(10));
  now_ -= absl::Hours(1);
  EXPECT_EQ(rate_.BytesPerSecond(now_), 0);
  Grow(1024, absl::Seconds(10));
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * 1024, 2 * 1024));
  now_ += absl::Hours(1'000'000);
  EXPECT_EQ(rate_.BytesPerSecond(now_), 0);
  Grow(1024, absl::Seconds(10));
  EXPECT_THAT(rate_.BytesPerSecond(now_), DoubleNear(100 * 1024, 2 * 1024));
}

}  // namespace
}  // namespace forestage
