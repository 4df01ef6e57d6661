#include "client/cli/byte_format.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

TEST(FormatBytesTest, GivesThreeDigitsAndABinaryUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(1536 * kMiB), "1.50 GiB");
  EXPECT_EQ(FormatBytes(16 * kMiB), "16.0 MiB");
  EXPECT_EQ(FormatBytes(700 * kGiB), "700 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(FormatBytesTest, NeverRoundsUpToFourDigits) {
  EXPECT_EQ(FormatBytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(FormatBytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(FormatBytes(10 * kGiB - 1), "10.0 GiB");
}

TEST(FormatSecondsTest, ChangesItsUnitWithTheSize) {
  EXPECT_EQ(FormatSeconds(-1), "0.000 s");
  EXPECT_EQ(FormatSeconds(0.1234), "0.123 s");
  EXPECT_EQ(FormatSeconds(12.34), "12.3 s");
  EXPECT_EQ(FormatSeconds(59.99), "1 min 00 s");
  EXPECT_EQ(FormatSeconds(303), "5 min 03 s");
  EXPECT_EQ(FormatSeconds(7500), "2 h 05 min");
  EXPECT_EQ(FormatSeconds(1e300), "very long");
}

TEST(ParseBytesTest, KnowsBinaryAndDecimalUnits) {
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("1GiB"), kGiB);
  EXPECT_EQ(*ParseBytes("1.5 gb"), 1'500'000'000u);
  EXPECT_EQ(*ParseBytes("16m"), 16 * kMiB);
  EXPECT_EQ(*ParseBytes(" 2 TiB "), 2 * 1024 * kGiB);
  EXPECT_EQ(*ParseBytes("7B"), 7u);
}

TEST(ParseBytesTest, RefusesEverythingElseAndSaysWhatIsAllowed) {
  for (const char* text :
       {"", "GiB", "-1", "1e3", "1 GiBs", "0x10", "1.2.3", "nan", "99999999TiB"}) {
    EXPECT_THAT(ParseBytes(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("like 512MiB")))
        << text;
  }
}

TEST(FormatCountTest, HasAPlural) {
  EXPECT_EQ(FormatCount(0, "shard"), "0 shards");
  EXPECT_EQ(FormatCount(1, "shard"), "1 shard");
  EXPECT_EQ(FormatCount(2, "shard"), "2 shards");
}

}  // namespace
}  // namespace forestage
