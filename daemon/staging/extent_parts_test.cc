#include "daemon/staging/extent_parts.h"

#include <bitset>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using Range = ExtentParts::Range;

constexpr uint32_t kBytes = 200;
using Bytes = std::bitset<kBytes>;

Bytes BytesOf(const ExtentParts& parts) {
  Bytes bytes;
  for (const Range& range : parts.ranges()) {
    for (uint32_t i = range.begin; i < range.end; ++i) bytes.set(i);
  }
  return bytes;
}

TEST(ExtentPartsTest, RangesThatTouchAreOne) {
  ExtentParts parts({.begin = 10, .end = 20});
  parts.Add({.begin = 30, .end = 40});
  parts.Add({.begin = 20, .end = 25});
  EXPECT_THAT(parts.ranges(), ElementsAre(Range{10, 25}, Range{30, 40}));
  parts.Add({.begin = 25, .end = 30});
  EXPECT_THAT(parts.ranges(), ElementsAre(Range{10, 40}));
}

TEST(ExtentPartsTest, AnEmptyRangeIsNothing) {
  ExtentParts parts({.begin = 7, .end = 7});
  parts.Add({.begin = 9, .end = 9});
  EXPECT_TRUE(parts.empty());
  EXPECT_TRUE(parts.Covers({.begin = 3, .end = 3}));
}

TEST(ExtentPartsTest, CoarseningTakesInTheSmallestGaps) {
  ExtentParts parts;
  for (const Range range : {Range{0, 10}, Range{11, 20}, Range{50, 60}, Range{63, 70}}) {
    parts.Add(range);
  }
  parts.Coarsen(3);
  EXPECT_THAT(parts.ranges(), ElementsAre(Range{0, 20}, Range{50, 60}, Range{63, 70}));
  parts.Coarsen(2);
  EXPECT_THAT(parts.ranges(), ElementsAre(Range{0, 20}, Range{50, 70}));
}

TEST(ExtentPartsTest, IsASetOfBytes) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    ExtentParts sets[2];
    Bytes bytes[2];
    for (int i = 0; i < 16; ++i) {
      const uint32_t begin = random() % kBytes;
      const uint32_t end = begin + random() % std::min<uint32_t>(30, kBytes - begin + 1);
      sets[i % 2].Add({.begin = begin, .end = end});
      for (uint32_t at = begin; at < end; ++at) bytes[i % 2].set(at);
    }
    const auto& [a, b] = sets;
    ASSERT_EQ(BytesOf(a), bytes[0]);
    ASSERT_EQ(a.bytes(), bytes[0].count());
    ASSERT_EQ(BytesOf(a.Intersect(b)), bytes[0] & bytes[1]);
    ASSERT_EQ(BytesOf(a.Without(b)), bytes[0] & ~bytes[1]);
    for (const Range& range : a.ranges()) {
      ASSERT_TRUE(a.Covers(range));
      ASSERT_FALSE(a.Covers({.begin = range.begin, .end = range.end + 1}));
    }
    ExtentParts sum = a;
    sum.Add(b);
    ASSERT_EQ(BytesOf(sum), bytes[0] | bytes[1]);
    for (size_t i = 1; i < sum.ranges().size(); ++i) {
      ASSERT_LT(sum.ranges()[i - 1].end, sum.ranges()[i].begin);
    }
  }
}

}  // namespace
}  // namespace forestage
