#include "client/src/read_ahead.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::IsEmpty;

using Part = ReadAhead::Part;

constexpr uint64_t kWindow = ReadAhead::kWindowBytes;
constexpr uint64_t kFirstWindow = ReadAhead::kFirstWindowBytes;
constexpr uint64_t kStep = ReadAhead::kStepBytes;

// Notes what is advised, and forgets it when asked for.
class Advised {
 public:
  ReadAhead::Advise Note() {
    return [this](const Part& part) { parts_.push_back(part); };
  }
  std::vector<Part> Take() { return std::exchange(parts_, {}); }

 private:
  std::vector<Part> parts_;
};

// From the beginning of a slice.
void ReadSlice(ReadAhead& ahead, const Part& slice) { ahead.MoveTo(slice, slice.begin); }

TEST(ReadAheadTest, FollowsTheDemandAcrossSlicesAndShards) {
  Advised advised;
  const std::vector<Part> order = {{0, 100, 200}, {1, 50, 80}, {1, 80, 90}, {0, 0, 10}};
  ReadAhead ahead(order, advised.Note());
  ReadSlice(ahead, order[0]);
  EXPECT_THAT(advised.Take(),
              ElementsAre(FieldsAre(0, 100, 200), FieldsAre(1, 50, 90), FieldsAre(0, 0, 10)));
  for (const Part& slice : order) ReadSlice(ahead, slice);
  EXPECT_THAT(advised.Take(), IsEmpty());
}

TEST(ReadAheadTest, TheWindowGrowsAndThenMovesInSteps) {
  Advised advised;
  constexpr uint64_t kSlice = kStep / 4;
  std::vector<Part> order;
  for (uint64_t i = 0; i < 1000; ++i) order.push_back({0, i * kSlice, (i + 1) * kSlice});
  ReadAhead ahead(order, advised.Note());
  uint64_t window = kFirstWindow;
  uint64_t end = 0;
  for (uint64_t i = 0; window < kWindow; ++i) {
    ReadSlice(ahead, order[i]);
    const uint64_t position = i * kSlice;
    EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, end, position + window)));
    end = position + window;
    window *= 2;
  }
  size_t next = end / kSlice;
  ReadSlice(ahead, order[next]);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, end, end + kWindow)));
  for (size_t i = 1; i < 4; ++i) {
    ReadSlice(ahead, order[next + i]);
    EXPECT_THAT(advised.Take(), IsEmpty());
  }
  ReadSlice(ahead, order[next + 4]);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, end + kWindow, end + kWindow + kStep)));
}

TEST(ReadAheadTest, GoesThroughASliceLongerThanTheWindow) {
  Advised advised;
  const Part slice = {2, 0, 4 * kWindow};
  ReadAhead ahead(std::vector<Part>{slice}, advised.Note());
  ahead.MoveTo(slice, 0);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(2, 0, kFirstWindow)));
  ahead.MoveTo(slice, kFirstWindow);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(2, kFirstWindow, 3 * kFirstWindow)));
  // What was jumped over is not wanted soon.
  ahead.MoveTo(slice, 2 * kWindow);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(2, 2 * kWindow, 2 * kWindow + kFirstWindow)));
}

TEST(ReadAheadTest, AReaderThatLeavesTheOrderIsFollowedFromWhereItIs) {
  Advised advised;
  const std::vector<Part> order = {{0, 0, kFirstWindow}, {0, kFirstWindow, 2 * kFirstWindow}};
  ReadAhead ahead(order, advised.Note());
  ReadSlice(ahead, order[1]);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, kFirstWindow, 2 * kFirstWindow)));
  ReadSlice(ahead, order[0]);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, 0, kFirstWindow)));
}

TEST(ReadAheadTest, OfWhatWasNotDemandedOnlyTheSliceIsAdvised) {
  Advised advised;
  ReadAhead ahead(std::vector<Part>{{1, 100, 200}}, advised.Note());
  for (const Part& slice : {Part{0, 100, 150}, Part{1, 0, 100}, Part{1, 200, 210}, Part{2, 0, 1}}) {
    ReadSlice(ahead, slice);
    EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(slice.shard_index, slice.begin, slice.end)));
  }
}

TEST(ReadAheadTest, WithoutADemandOnlyAReaderThatGoesOnIsReadAheadOf) {
  Advised advised;
  const std::vector<uint64_t> shard_bytes = {100 * kStep, kStep};
  ReadAhead ahead(shard_bytes, advised.Note());
  // A rank's rows of a tensor, in two reads, and those of the next one.
  const Part rows = {0, 1000, 1000 + kStep};
  ReadSlice(ahead, rows);
  ahead.MoveTo(rows, 1000 + kStep / 2);
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, 1000, 1000 + kStep)));
  const uint64_t second = 1000 + 8 * kStep;
  ReadSlice(ahead, {0, second, second + kStep});
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, second, second + kStep)));
  // This tensor begins where that one ended.
  ReadSlice(ahead, {0, second + kStep, second + 2 * kStep});
  EXPECT_THAT(advised.Take(),
              ElementsAre(FieldsAre(0, second + kStep, second + kStep + 2 * kFirstWindow)));
  // On to the next shard.
  ReadSlice(ahead, {0, 100 * kStep - 10, 100 * kStep});
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(0, 100 * kStep - 10, 100 * kStep)));
  ReadSlice(ahead, {1, 0, 10});
  EXPECT_THAT(advised.Take(), ElementsAre(FieldsAre(1, 0, kStep)));
}

// Whatever the order, each byte of a slice has been advised when its reader comes to it.
TEST(ReadAheadTest, EverySliceIsAdvisedBeforeItIsRead) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](uint64_t bound) { return random() % bound; };
  constexpr uint64_t kUnit = kStep / 2;
  for (int round = 0; round < 50; ++round) {
    const size_t shards = 1 + below(3);
    constexpr size_t kUnits = 200;
    std::vector<std::vector<bool>> advised(shards, std::vector<bool>(kUnits));
    std::vector<Part> slices;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      for (uint64_t unit = 0; unit < kUnits;) {
        const uint64_t end = std::min<uint64_t>(kUnits, unit + 1 + below(20));
        if (below(3) > 0) slices.push_back({shard, unit * kUnit, end * kUnit});
        unit = end;
      }
    }
    if (below(2) == 0) std::shuffle(slices.begin(), slices.end(), random);
    const auto note = [&](const Part& part) {
      ASSERT_LT(part.begin, part.end);
      std::fill(advised[part.shard_index].begin() + static_cast<ptrdiff_t>(part.begin / kUnit),
                advised[part.shard_index].begin() + static_cast<ptrdiff_t>(part.end / kUnit), true);
    };
    ReadAhead ahead(slices, note);
    if (below(2) == 0) std::shuffle(slices.begin(), slices.end(), random);
    for (const Part& slice : slices) {
      for (uint64_t begin = slice.begin; begin < slice.end; begin += kUnit) {
        ahead.MoveTo(slice, begin);
        ASSERT_TRUE(advised[slice.shard_index][begin / kUnit])
            << slice.shard_index << " at " << begin / kUnit;
      }
    }
  }
}

TEST(ReadAheadTest, ServesManyThreads) {
  uint64_t advised_bytes = 0;  // ThreadSanitizer would see two threads in it
  std::vector<Part> order;
  for (uint64_t i = 0; i < 1000; ++i) order.push_back({0, i * kStep, (i + 1) * kStep});
  ReadAhead ahead(order, [&](const Part& part) { advised_bytes += part.end - part.begin; });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (const Part& slice : order) ReadSlice(ahead, slice);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(advised_bytes, 0u);
}

}  // namespace
}  // namespace forestage
