#include "daemon/staging/read_pace.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kRate = 80 * kMiB;
constexpr uint64_t kExtent = 8 * kMiB;
const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(1);

TEST(ReadPaceTest, TheFirstReadBeginsAtOnceAndTheNextWhenItIsPaidFor) {
  ReadPace pace(kRate);
  EXPECT_LE(pace.Next(kBegin), kBegin);
  // What nobody used before counts as credit, and no more than that.
  int reads = 0;
  while (pace.Next(kBegin) <= kBegin) {
    pace.Take(kExtent, kBegin);
    ++reads;
  }
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(pace.Next(kBegin), kBegin + absl::Milliseconds(100));
}

TEST(ReadPaceTest, KeepsToTheRateWhoeverAsksHoweverOften) {
  const uint32_t seed = static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  ReadPace pace(kRate);
  std::vector<std::pair<absl::Time, uint64_t>> reads;
  absl::Time now = kBegin;
  for (int i = 0; i < 5000; ++i) {
    // Woken late, mostly a little, and sometimes after nobody wanted anything.
    now += absl::Microseconds(random() % (i % 500 == 0 ? 5'000'000 : 30'000));
    const uint64_t bytes = 1 + random() % kExtent;
    if (pace.Next(now) > now) continue;
    pace.Take(bytes, now);
    reads.emplace_back(now, bytes);
  }
  ASSERT_GT(reads.size(), 500u);
  for (size_t first = 0; first < reads.size(); first += 7) {
    double bytes = 0;
    for (size_t i = first; i < std::min(reads.size(), first + 300); ++i) {
      bytes += static_cast<double>(reads[i].second);
      const absl::Duration time = reads[i].first - reads[first].first + ReadPace::kCredit;
      ASSERT_LE(bytes, absl::ToDoubleSeconds(time) * kRate + kExtent) << first << " to " << i;
    }
  }
}

TEST(ReadPaceTest, WhoIsWokenALittleLateComesToTheRateAllTheSame) {
  ReadPace pace(kRate);
  absl::Time now = kBegin;
  uint64_t bytes = 0;
  while (now < kBegin + absl::Seconds(100)) {
    while (pace.Next(now) <= now) {
      pace.Take(kExtent, now);
      bytes += kExtent;
    }
    now = pace.Next(now) + absl::Milliseconds(30);
  }
  EXPECT_GT(bytes, 99 * kRate);
  EXPECT_LT(bytes, 101 * kRate);
}

TEST(ReadPaceTest, WhatWasNotReadIsGivenBack) {
  ReadPace pace(kRate);
  // All of it is in memory: the limit does not slow that.
  for (int i = 0; i < 1000; ++i) {
    ASSERT_LE(pace.Next(kBegin), kBegin) << i;
    pace.Take(kExtent, kBegin);
    pace.GiveBack(kExtent);
  }
  pace.Take(kExtent, kBegin);
  pace.GiveBack(kExtent / 2);
  pace.Take(kExtent, kBegin);
  EXPECT_EQ(pace.Next(kBegin), kBegin + absl::Milliseconds(50));
}

TEST(ReadPaceTest, WhatIsGivenBackLateIsNoCredit) {
  ReadPace pace(kRate);
  for (int i = 0; i < 10; ++i) {
    const absl::Time now = kBegin + i * absl::Seconds(1);
    pace.Take(kExtent, now);
  }
  pace.GiveBack(10 * kExtent);
  const absl::Time now = kBegin + absl::Seconds(20);
  int reads = 0;
  while (pace.Next(now) <= now) {
    pace.Take(kExtent, now);
    ++reads;
  }
  EXPECT_EQ(reads, 2);
}

TEST(ReadPaceTest, AClockThatIsSetBackHoldsNobodyUp) {
  ReadPace pace(kRate);
  while (pace.Next(kBegin) <= kBegin) pace.Take(kExtent, kBegin);
  const absl::Duration left = pace.Next(kBegin) - kBegin;
  const absl::Time back = kBegin - absl::Minutes(30);
  EXPECT_EQ(pace.Next(back) - back, left);
  pace.Take(kExtent, back + left);
  EXPECT_LE(pace.Next(back + left), back + absl::Seconds(1));
}

}  // namespace
}  // namespace forestage
