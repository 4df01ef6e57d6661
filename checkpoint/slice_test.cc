#include "checkpoint/slice.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

absl::StatusOr<SlicePlan> Plan(Dtype dtype, std::vector<uint64_t> shape,
                               std::vector<DimensionRange> ranges, uint64_t begin = 1000) {
  return SlicePlan::Create(dtype, shape, ranges, begin);
}

std::vector<uint64_t> Runs(const SlicePlan& plan) {
  std::vector<uint64_t> offsets;
  plan.ForEachRun(0, plan.run_count(), [&](uint64_t offset) { offsets.push_back(offset); });
  return offsets;
}

TEST(SlicePlanTest, TakesWholeTensorsInOneRun) {
  ASSERT_OK_AND_ASSIGN(const SlicePlan plan, Plan(Dtype::kF32, {4, 6}, {}));
  EXPECT_TRUE(plan.contiguous());
  EXPECT_EQ(plan.bytes(), 96u);
  EXPECT_THAT(plan.shape(), ElementsAre(4, 6));
  EXPECT_EQ(plan.file_begin(), 1000u);
  EXPECT_EQ(plan.file_end(), 1096u);
  EXPECT_THAT(Runs(plan), ElementsAre(1000));
}

TEST(SlicePlanTest, RowsAreContiguousAndColumnsAreNot) {
  ASSERT_OK_AND_ASSIGN(const SlicePlan rows, Plan(Dtype::kF32, {4, 6}, {{1, 3}}));
  EXPECT_TRUE(rows.contiguous());
  EXPECT_EQ(rows.file_begin(), 1024u);
  EXPECT_EQ(rows.file_end(), 1072u);
  ASSERT_OK_AND_ASSIGN(const SlicePlan columns, Plan(Dtype::kF32, {4, 6}, {{0, 4}, {2, 5}}));
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.run_bytes(), 12u);
  EXPECT_THAT(Runs(columns), ElementsAre(1008, 1032, 1056, 1080));
  EXPECT_EQ(columns.file_begin(), 1008u);
  EXPECT_EQ(columns.file_end(), 1092u);
  // One row of columns is one run.
  ASSERT_OK_AND_ASSIGN(const SlicePlan corner, Plan(Dtype::kF32, {4, 6}, {{3, 4}, {2, 5}}));
  EXPECT_TRUE(corner.contiguous());
}

TEST(SlicePlanTest, TakesScalarsWhole) {
  ASSERT_OK_AND_ASSIGN(const SlicePlan plan, Plan(Dtype::kF64, {}, {}));
  EXPECT_EQ(plan.bytes(), 8u);
  EXPECT_THAT(plan.shape(), IsEmpty());
  EXPECT_THAT(Plan(Dtype::kF64, {}, {{0, 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 ranges")));
}

TEST(SlicePlanTest, EmptySlicesHaveNoRun) {
  for (const std::vector<DimensionRange>& ranges : std::vector<std::vector<DimensionRange>>{
           {{2, 2}}, {{4, 4}}, {{0, 4}, {6, 6}}, {{1, 2}, {0, 0}}}) {
    ASSERT_OK_AND_ASSIGN(const SlicePlan plan, Plan(Dtype::kF32, {4, 6}, ranges));
    EXPECT_EQ(plan.bytes(), 0u);
    EXPECT_EQ(plan.run_count(), 0u);
    EXPECT_TRUE(plan.contiguous());
    EXPECT_EQ(plan.file_begin(), plan.file_end());
    EXPECT_THAT(Runs(plan), IsEmpty());
  }
}

TEST(SlicePlanTest, RefusesRangesOutsideTheShape) {
  EXPECT_THAT(Plan(Dtype::kF32, {4, 6}, {{3, 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[3, 2)")));
  EXPECT_THAT(Plan(Dtype::kF32, {4, 6}, {{0, 4}, {0, 7}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dimension 1")));
  EXPECT_THAT(Plan(Dtype::kF32, {4}, {{0, 4}, {0, 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1")));
}

TEST(SlicePlanTest, RefusesSubByteSlicesInsideBytes) {
  const auto misaligned = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("inside a byte"));
  EXPECT_OK(Plan(Dtype::kF4, {4, 6}, {{1, 3}, {2, 4}}));
  EXPECT_THAT(Plan(Dtype::kF4, {4, 6}, {{1, 3}, {1, 3}}), misaligned);
  EXPECT_THAT(Plan(Dtype::kF4, {4, 6}, {{1, 3}, {2, 5}}), misaligned);
  EXPECT_THAT(Plan(Dtype::kF4, {4, 3}, {{1, 2}}), misaligned);
  EXPECT_OK(Plan(Dtype::kF4, {4, 3}, {{2, 4}}));
  EXPECT_THAT(Plan(Dtype::kF4, {3}, {}), misaligned);
  EXPECT_THAT(Plan(Dtype::kF4, {}, {}), misaligned);
  EXPECT_OK(Plan(Dtype::kF6E2M3, {8}, {{4, 8}}));
  EXPECT_THAT(Plan(Dtype::kF6E2M3, {8}, {{2, 6}}), misaligned);
  // The sum of the offsets is whole bytes, but neither of them is: refused by the reference too.
  EXPECT_THAT(Plan(Dtype::kF4, {2, 3}, {{1, 2}, {1, 3}}), misaligned);
}

TEST(SlicePlanTest, DoesNotOverflow) {
  ASSERT_OK_AND_ASSIGN(const SlicePlan empty, Plan(Dtype::kF16, {0, kMax}, {}));
  EXPECT_EQ(empty.bytes(), 0u);
  EXPECT_OK(Plan(Dtype::kF16, {kMax, 0, kMax}, {{5, kMax}}));
  EXPECT_OK(Plan(Dtype::kF16, {0, kMax}, {{0, 0}, {kMax - 1, kMax}}));
  EXPECT_OK(Plan(Dtype::kF16, {kMax, kMax}, {{kMax, kMax}}));
  const auto too_large = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not fit"));
  EXPECT_THAT(Plan(Dtype::kF16, {kMax}, {{0, 1}}), too_large);
  EXPECT_THAT(Plan(Dtype::kU8, {uint64_t{1} << 32, uint64_t{1} << 32}, {{0, 1}, {0, 1}}),
              too_large);
  EXPECT_THAT(Plan(Dtype::kU8, {1000}, {}, kMax - 10), too_large);
}

// Element by element: which bit of the tensor is each bit of the slice?
std::vector<uint64_t> NaiveBits(uint64_t element_bits, const std::vector<uint64_t>& shape,
                                const std::vector<DimensionRange>& ranges) {
  std::vector<uint64_t> bits;
  uint64_t elements = 1;
  for (const uint64_t dimension : shape) elements *= dimension;
  for (uint64_t element = 0; element < elements; ++element) {
    uint64_t rest = element;
    bool inside = true;
    for (size_t i = shape.size(); i-- > 0;) {
      const uint64_t index = rest % shape[i];
      rest /= shape[i];
      if (i < ranges.size() && (index < ranges[i].start || index >= ranges[i].stop)) inside = false;
    }
    for (uint64_t bit = 0; inside && bit < element_bits; ++bit) {
      bits.push_back(element * element_bits + bit);
    }
  }
  return bits;
}

// The same from a plan, run by run.
std::vector<uint64_t> PlannedBits(const SlicePlan& plan, uint64_t tensor_begin) {
  std::vector<uint64_t> bits;
  plan.ForEachRun(0, plan.run_count(), [&](uint64_t offset) {
    EXPECT_GE(offset, plan.file_begin());
    EXPECT_LE(offset + plan.run_bytes(), plan.file_end());
    for (uint64_t bit = 0; bit < plan.run_bytes() * 8; ++bit) {
      bits.push_back((offset - tensor_begin) * 8 + bit);
    }
  });
  return bits;
}

// The reference's condition, dimension by dimension from the last: the innermost range that is not
// whole begins and ends at a byte, and so does every index above it.
bool ReferenceAllows(uint64_t element_bits, const std::vector<uint64_t>& shape,
                     const std::vector<DimensionRange>& ranges) {
  uint64_t span = element_bits;
  bool sliced = false;
  for (size_t i = shape.size(); i-- > 0; span *= shape[i]) {
    if (i >= ranges.size()) continue;
    if (!sliced) {
      if (ranges[i].start == 0 && ranges[i].stop == shape[i]) continue;
      if (ranges[i].start * span % 8 != 0 || ranges[i].stop * span % 8 != 0) return false;
      sliced = true;
      continue;
    }
    for (uint64_t index = ranges[i].start; index < ranges[i].stop; ++index) {
      if (index * span % 8 != 0) return false;
    }
  }
  return sliced || span % 8 == 0;
}

TEST(SlicePlanTest, AgreesWithElementByElement) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  size_t planned = 0;
  for (int round = 0; round < 5000; ++round) {
    const Dtype dtype = static_cast<Dtype>(random() % kDtypeCount);
    std::vector<uint64_t> shape(random() % 5);
    for (uint64_t& dimension : shape) dimension = random() % 12 == 0 ? 0 : 1 + random() % 5;
    std::vector<DimensionRange> ranges(random() % (shape.size() + 1));
    bool empty = false;
    for (size_t i = 0; i < shape.size(); ++i) empty = empty || shape[i] == 0;
    std::string text = absl::StrCat(DtypeName(dtype), " [", absl::StrJoin(shape, ","), "] at");
    for (size_t i = 0; i < ranges.size(); ++i) {
      ranges[i] = {0, shape[i]};
      if (random() % 2 == 0) ranges[i].start = random() % (shape[i] + 1);
      if (random() % 2 == 0)
        ranges[i].stop = ranges[i].start + random() % (shape[i] - ranges[i].start + 1);
      empty = empty || ranges[i].start == ranges[i].stop;
      absl::StrAppend(&text, " ", ranges[i].start, ":", ranges[i].stop);
    }
    SCOPED_TRACE(text);
    const uint64_t begin = random() % 1000;
    const absl::StatusOr<SlicePlan> plan = SlicePlan::Create(dtype, shape, ranges, begin);
    ASSERT_EQ(plan.ok(), empty || ReferenceAllows(DtypeBits(dtype), shape, ranges));
    if (!plan.ok()) continue;
    ++planned;
    ASSERT_EQ(PlannedBits(*plan, begin), NaiveBits(DtypeBits(dtype), shape, ranges));
    ASSERT_EQ(plan->bytes(), plan->run_bytes() * plan->run_count());
    const std::vector<uint64_t> runs = Runs(*plan);
    if (runs.empty()) continue;
    ASSERT_EQ(plan->file_begin(), runs.front());
    ASSERT_EQ(plan->file_end(), runs.back() + plan->run_bytes());
    // Runs are as long as they can be, and any part of them can be asked for.
    for (size_t i = 1; i < runs.size(); ++i) ASSERT_GT(runs[i], runs[i - 1] + plan->run_bytes());
    const size_t first = random() % (runs.size() + 1);
    const size_t last = first + random() % (runs.size() - first + 1);
    std::vector<uint64_t> part;
    plan->ForEachRun(first, last, [&](uint64_t offset) { part.push_back(offset); });
    ASSERT_EQ(part, std::vector<uint64_t>(runs.begin() + static_cast<ptrdiff_t>(first),
                                          runs.begin() + static_cast<ptrdiff_t>(last)));
  }
  EXPECT_GT(planned, 3000u);
}

}  // namespace
}  // namespace forestage
