#include "client/cli/rank_plan.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace forestage {
namespace {

using Kind = RowPart::Kind;

TEST(RowPartTest, CoversEveryRowOnceForAnyRowsAndRanks) {
  for (uint64_t rows = 1; rows <= 40; ++rows) {
    for (uint32_t ranks = 1; ranks <= 12; ++ranks) {
      uint64_t next = 0;
      const uint64_t share = (rows + ranks - 1) / ranks;
      const std::vector<uint64_t> shape = {rows, 3};
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const RowPart part = RowPartOf(shape, 16, rank, ranks);
        ASSERT_EQ(part.kind, Kind::kRows);
        EXPECT_EQ(part.first, std::min(rows, rank * share));
        EXPECT_EQ(part.first, next);
        next = part.last;
      }
      EXPECT_EQ(next, rows) << rows << " rows, " << ranks << " ranks";
    }
  }
}

TEST(RowPartTest, GivesScalarsWholeToEveryRank) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const RowPart part = RowPartOf({}, 32, rank, 3);
    EXPECT_EQ(part.kind, Kind::kWhole);
    EXPECT_FALSE(part.uncuttable);
  }
}

TEST(RowPartTest, GivesNoElementsOfATensorWithoutElements) {
  const RowPart no_rows = RowPartOf(std::vector<uint64_t>{0, 5}, 16, 1, 2);
  EXPECT_EQ(no_rows.kind, Kind::kRows);
  EXPECT_EQ(no_rows.first, 0u);
  EXPECT_EQ(no_rows.last, 0u);
  const RowPart empty_rows = RowPartOf(std::vector<uint64_t>{UINT64_MAX, 0}, 16, 1, 2);
  EXPECT_EQ(empty_rows.kind, Kind::kRows);
  EXPECT_EQ(empty_rows.last, UINT64_MAX);
}

TEST(RowPartTest, TakesWholeWhatWouldBeCutInsideAByte) {
  // 3 rows of 3 elements of 4 bits are no whole bytes; neither are 2 * 3 of 6 bits.
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const RowPart part = RowPartOf(std::vector<uint64_t>{6, 3}, 4, rank, 2);
    EXPECT_EQ(part.kind, Kind::kWhole);
    EXPECT_TRUE(part.uncuttable);
    EXPECT_TRUE(RowPartOf(std::vector<uint64_t>{4, 3}, 6, rank, 2).uncuttable);
  }
}

TEST(RowPartTest, CutsSubByteTensorsAtBytes) {
  const RowPart part = RowPartOf(std::vector<uint64_t>{6, 2}, 4, 1, 2);
  EXPECT_EQ(part.kind, Kind::kRows);
  EXPECT_EQ(part.first, 3u);
  EXPECT_EQ(part.last, 6u);
  // An odd tensor in one piece has no cut.
  EXPECT_EQ(RowPartOf(std::vector<uint64_t>{3, 2, 1}, 4, 0, 1).kind, Kind::kRows);
}

TEST(RowPartTest, SurvivesHugeDimensions) {
  const std::vector<uint64_t> shape = {uint64_t{1} << 62, 4};
  const RowPart part = RowPartOf(shape, 8, 255, 256);
  EXPECT_EQ(part.kind, Kind::kRows);
  EXPECT_EQ(part.last, uint64_t{1} << 62);
  const RowPart none = RowPartOf(std::vector<uint64_t>{1}, 8, 255, 256);
  EXPECT_EQ(none.first, 1u);
  EXPECT_EQ(none.last, 1u);
}

}  // namespace
}  // namespace forestage
