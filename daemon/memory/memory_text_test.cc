#include "daemon/memory/memory_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::Eq;
using ::testing::Optional;

constexpr char kMeminfo[] =
    "MemTotal:       24683652 kB\n"
    "MemFree:        13097540 kB\n"
    "MemAvailable:   21927320 kB\n"
    "HugePages_Total:       0\n";

TEST(MeminfoBytesTest, ReadsOneRowInKib) {
  EXPECT_THAT(MeminfoBytes(kMeminfo, "MemTotal"), Optional(uint64_t{24683652} * 1024));
  EXPECT_THAT(MeminfoBytes(kMeminfo, "MemAvailable"), Optional(uint64_t{21927320} * 1024));
}

TEST(MeminfoBytesTest, TakesNothingElseForARow) {
  // The name is a whole one, and old kernels lack MemAvailable.
  EXPECT_THAT(MeminfoBytes(kMeminfo, "Mem"), Eq(std::nullopt));
  EXPECT_THAT(MeminfoBytes("MemFree: 1 kB\n", "MemAvailable"), Eq(std::nullopt));
  EXPECT_THAT(MeminfoBytes("", "MemTotal"), Eq(std::nullopt));
}

TEST(MeminfoBytesTest, RefusesWhatTheKernelDoesNotWrite) {
  for (const char* row :
       {"MemTotal: 7\n", "MemTotal: -7 kB\n", "MemTotal:  kB\n", "MemTotal: 7 MB\n",
        "MemTotal: 0x7 kB\n", "MemTotal: 7 7 kB\n",
        // Its bytes do not fit 64 bits; its kB do.
        "MemTotal: 18014398509481984 kB\n", "MemTotal: 99999999999999999999999 kB\n"}) {
    EXPECT_THAT(MeminfoBytes(row, "MemTotal"), Eq(std::nullopt)) << row;
  }
}

TEST(ParseMemoryLimitTest, ReadsBothVersions) {
  EXPECT_THAT(ParseMemoryLimit("107374182400\n"), Optional(uint64_t{107374182400}));
  EXPECT_THAT(ParseMemoryLimit("0\n"), Optional(uint64_t{0}));
  EXPECT_THAT(ParseMemoryLimit("max\n"), Optional(kNoMemoryLimit));
}

TEST(ParseMemoryLimitTest, NumbersNearTwoToThe63AreNoLimitWhateverThePageSize) {
  EXPECT_THAT(ParseMemoryLimit("9223372036854771712\n"), Optional(kNoMemoryLimit));  // 4 KiB
  EXPECT_THAT(ParseMemoryLimit("9223372036854710272\n"), Optional(kNoMemoryLimit));  // 64 KiB
  EXPECT_THAT(ParseMemoryLimit("9223372036854775807\n"), Optional(kNoMemoryLimit));
  EXPECT_THAT(ParseMemoryLimit("18446744073709551615\n"), Optional(kNoMemoryLimit));
}

TEST(ParseMemoryLimitTest, RefusesGarbage) {
  for (const char* text : {"", "\n", "-1\n", "maximum\n", "1 2\n", "1\n\n", " 1\n", "1k\n", "+1\n",
                           "18446744073709551616\n"}) {
    EXPECT_THAT(ParseMemoryLimit(text), Eq(std::nullopt)) << text;
  }
}

TEST(MemoryStatBytesTest, ReadsWholeNamesOnly) {
  constexpr char kStat[] =
      "cache 10\ninactive_file 1\nactive_file 2\ntotal_inactive_file 3\ntotal_active_file 4\n";
  EXPECT_THAT(MemoryStatBytes(kStat, "active_file"), Optional(uint64_t{2}));
  EXPECT_THAT(MemoryStatBytes(kStat, "total_active_file"), Optional(uint64_t{4}));
  EXPECT_THAT(MemoryStatBytes(kStat, "file"), Eq(std::nullopt));
  EXPECT_THAT(MemoryStatBytes(kStat, "active"), Eq(std::nullopt));
  EXPECT_THAT(MemoryStatBytes("active_file two\n", "active_file"), Eq(std::nullopt));
  EXPECT_THAT(MemoryStatBytes("active_file", "active_file"), Eq(std::nullopt));
}

}  // namespace
}  // namespace forestage
