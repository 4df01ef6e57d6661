#include "client/src/read_places.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(ReadPlacesTest, ShowsReadsFromTheirFirstPieceToTheirEnd) {
  ReadPlaces places;
  {
    ReadPlaces::Mark mark(places, 3);
    EXPECT_TRUE(places.List().empty());
    mark.Set(4096, /*waits_for_daemon=*/true);
    ASSERT_EQ(places.List().size(), 1);
    EXPECT_EQ(places.List()[0].shard_index, 3);
    EXPECT_EQ(places.List()[0].offset, 4096);
    EXPECT_TRUE(places.List()[0].waits_for_daemon);
    mark.Set(8192, /*waits_for_daemon=*/false);
    EXPECT_EQ(places.List()[0].offset, 8192);
    EXPECT_FALSE(places.List()[0].waits_for_daemon);
  }
  EXPECT_TRUE(places.List().empty());
}

TEST(ReadPlacesTest, WhatIsTooMuchIsNotSeenAndHarmsNobody) {
  ReadPlaces places;
  std::vector<std::unique_ptr<ReadPlaces::Mark>> marks;
  for (uint32_t i = 0; i < 100; ++i) {
    marks.push_back(std::make_unique<ReadPlaces::Mark>(places, i));
    marks.back()->Set(i, false);
  }
  EXPECT_EQ(places.List().size(), 32);
  marks.clear();
  EXPECT_TRUE(places.List().empty());
}

}  // namespace
}  // namespace forestage
