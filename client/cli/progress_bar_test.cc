#include "client/cli/progress_bar.h"

#include <string>

#include "gtest/gtest.h"

#include "common/units.h"

namespace forestage {
namespace {

TEST(ProgressLineTest, GivesBytesShareRateAndTimeLeft) {
  EXPECT_EQ(FormatProgressLine("staging", {.done_bytes = 512 * kMiB,
                                           .total_bytes = kGiB,
                                           .bytes_per_second = 256 * kMiB,
                                           .time_left = absl::Seconds(2)}),
            "staging  512 MiB of 1.00 GiB (50 %), 256 MiB/s, 2.000 s left");
}

TEST(ProgressLineTest, GivesNoRateAndNoTimeLeftAtTheEnd) {
  EXPECT_EQ(FormatProgressLine("x", {.done_bytes = kGiB,
                                     .total_bytes = kGiB,
                                     .bytes_per_second = 1,
                                     .time_left = absl::ZeroDuration()}),
            "x  1.00 GiB of 1.00 GiB (100 %)");
}

TEST(ProgressLineTest, GivesNoRateBeforeAnythingHasCome) {
  EXPECT_EQ(FormatProgressLine("x", {.done_bytes = 0, .total_bytes = kGiB}),
            "x  0 B of 1.00 GiB (0 %)");
}

TEST(ProgressLineTest, SaysThatNothingComesAnyMore) {
  EXPECT_EQ(FormatProgressLine("x", {.done_bytes = 1, .total_bytes = kGiB}),
            "x  1 B of 1.00 GiB (0 %), nothing comes");
}

TEST(ProgressLineTest, SaysHundredPercentOnlyWhenAllIsDone) {
  const std::string line = FormatProgressLine("x", {.done_bytes = kGiB - 1, .total_bytes = kGiB});
  EXPECT_NE(line.find("(99 %)"), std::string::npos) << line;
}

TEST(ProgressBarTest, FillsWithTheShareAndFitsTheTerminal) {
  const ProgressFigures half = {.done_bytes = 1, .total_bytes = 2, .bytes_per_second = 1};
  EXPECT_EQ(FormatProgressBar("x", half, 200),
            "[############............] x  1 B of 2 B (50 %), 1 B/s");
  EXPECT_EQ(FormatProgressBar("x", half, 37), "[###....] x  1 B of 2 B (50 %), 1 B/s");
  EXPECT_EQ(FormatProgressBar("x", half, 10), "x  1 B of ");
}

TEST(ProgressBarTest, TakesNothingToDoAsDone) {
  EXPECT_EQ(FormatProgressBar("x", {}, 200), "[########################] x  0 B of 0 B (100 %)");
}

}  // namespace
}  // namespace forestage
