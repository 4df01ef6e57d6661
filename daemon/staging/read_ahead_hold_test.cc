#include "daemon/staging/read_ahead_hold.h"

#include "gtest/gtest.h"

namespace forestage {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kLongest = absl::Milliseconds(100);

absl::Time At(int milliseconds) { return kStart + absl::Milliseconds(milliseconds); }

TEST(ReadAheadHoldTest, HoldsUntilTheLastOfThoseWhoOpenHasWhatItCameFor) {
  ReadAheadHold hold(kLongest);
  EXPECT_FALSE(hold.holds(kStart));
  EXPECT_EQ(hold.EndsAt(kStart), absl::InfiniteFuture());
  hold.Begin(1, kStart);
  hold.Begin(2, At(5));
  EXPECT_TRUE(hold.holds(At(6)));
  EXPECT_FALSE(hold.End(1, At(10)));
  EXPECT_TRUE(hold.holds(At(11)));
  EXPECT_FALSE(hold.End(3, At(12)));
  EXPECT_TRUE(hold.End(2, At(20)));
  EXPECT_FALSE(hold.holds(At(20)));
  EXPECT_FALSE(hold.End(2, At(21)));
}

TEST(ReadAheadHoldTest, EndsByItselfForWhoNeverSaysThatItHasAnything) {
  ReadAheadHold hold(kLongest);
  hold.Begin(1, kStart);
  EXPECT_EQ(hold.EndsAt(At(1)), At(100));
  // Nobody makes it longer, neither again nor anew.
  hold.Begin(1, At(99));
  hold.Begin(2, At(99));
  EXPECT_TRUE(hold.holds(At(99)));
  EXPECT_FALSE(hold.holds(At(100)));
  EXPECT_FALSE(hold.End(1, At(101)));
}

TEST(ReadAheadHoldTest, RestsAfterEachHoldSoThatNobodyHoldsUpOthersForLong) {
  ReadAheadHold hold(kLongest);
  int held = 0;
  // A session a millisecond, and none that ever gets anything.
  for (int i = 0; i < 10'000; ++i) {
    hold.Begin(static_cast<SessionId>(i), At(i));
    if (hold.holds(At(i))) ++held;
  }
  EXPECT_LE(held, 10'000 / (kReadAheadHoldRest + 1) + 100);
  EXPECT_GE(held, 10'000 / (kReadAheadHoldRest + 1) - 100);
}

TEST(ReadAheadHoldTest, RestsAsLongAsAShortHoldWants) {
  ReadAheadHold hold(kLongest);
  hold.Begin(1, kStart);
  EXPECT_TRUE(hold.End(1, At(10)));
  hold.Begin(2, At(10 + 10 * kReadAheadHoldRest - 1));
  EXPECT_FALSE(hold.holds(At(10 + 10 * kReadAheadHoldRest)));
  hold.Begin(3, At(10 + 10 * kReadAheadHoldRest));
  EXPECT_TRUE(hold.holds(At(10 + 10 * kReadAheadHoldRest)));
}

}  // namespace
}  // namespace forestage
