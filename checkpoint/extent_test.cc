#include "checkpoint/extent.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/units.h"

namespace forestage {
namespace {

TEST(ExtentMapTest, CutsEachShardFromItsBeginning) {
  const uint64_t size = PageBytes();
  const ExtentMap map(std::vector<uint64_t>{size + 1, 0, size, 5}, size);
  ASSERT_EQ(map.extent_count(), 4u);
  const std::vector<Extent> expected = {{0, 0, size}, {0, size, 1}, {2, 0, size}, {3, 0, 5}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(map.extent(i).shard_index, expected[i].shard_index) << i;
    EXPECT_EQ(map.extent(i).offset, expected[i].offset) << i;
    EXPECT_EQ(map.extent(i).bytes, expected[i].bytes) << i;
  }
  EXPECT_EQ(map.Covering(0, size - 1, size + 1), std::make_pair(uint64_t{0}, uint64_t{2}));
  EXPECT_EQ(map.Covering(0, size, size + 1), std::make_pair(uint64_t{1}, uint64_t{2}));
  EXPECT_EQ(map.Covering(3, 0, 5), std::make_pair(uint64_t{3}, uint64_t{4}));
  for (const uint64_t place : {uint64_t{0}, size, size + 1}) {
    const auto [first, last] = map.Covering(0, place, place);
    EXPECT_EQ(first, last);
  }
}

TEST(ExtentMapTest, HasNoneWithoutBytes) {
  EXPECT_EQ(ExtentMap({}, kExtentBytesDefault).extent_count(), 0u);
  EXPECT_EQ(ExtentMap(std::vector<uint64_t>{0, 0}, kExtentBytesDefault).extent_count(), 0u);
}

TEST(ExtentMapTest, HoldsTheLargestFiles) {
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();
  const ExtentMap map(std::vector<uint64_t>{kLargest}, kExtentBytesDefault);
  EXPECT_EQ(map.extent_count(), uint64_t{1} << 41);
  EXPECT_EQ(map.extent(map.extent_count() - 1).bytes, kExtentBytesDefault - 1);
}

TEST(ExtentMapTest, CoversExactlyTheBytesAskedFor) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const uint64_t size = PageBytes();
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> shards(1 + random() % 4);
    for (uint64_t& bytes : shards) bytes = random() % 3 == 0 ? 0 : random() % (5 * size);
    const ExtentMap map(shards, size);
    // Every byte of every shard lies in one extent, in order.
    uint64_t next = 0;
    for (uint32_t shard = 0; shard < shards.size(); ++shard) {
      for (uint64_t offset = 0; offset < shards[shard]; offset += size, ++next) {
        const Extent extent = map.extent(next);
        ASSERT_EQ(extent.shard_index, shard);
        ASSERT_EQ(extent.offset, offset);
        ASSERT_EQ(extent.bytes, std::min(size, shards[shard] - offset));
      }
    }
    ASSERT_EQ(map.extent_count(), next);
    const uint32_t shard = random() % shards.size();
    const uint64_t begin = random() % (shards[shard] + 1);
    const uint64_t end = begin + random() % (shards[shard] - begin + 1);
    const auto [first, last] = map.Covering(shard, begin, end);
    for (uint64_t i = 0; i < map.extent_count(); ++i) {
      const Extent extent = map.extent(i);
      const bool touches = extent.shard_index == shard && begin < end && extent.offset < end &&
                           begin < extent.offset + extent.bytes;
      ASSERT_EQ(touches, first <= i && i < last) << i;
    }
  }
}

}  // namespace
}  // namespace forestage
