#include "common/units.h"

#include "absl/status/status.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

TEST(UnitsTest, ReadsSizesInEveryUnit) {
  EXPECT_EQ(ParseByteSize("0").value(), 0u);
  EXPECT_EQ(ParseByteSize("4096").value(), 4096u);
  EXPECT_EQ(ParseByteSize("64KiB").value(), 64 * kKiB);
  EXPECT_EQ(ParseByteSize("8MiB").value(), 8 * kMiB);
  EXPECT_EQ(ParseByteSize("1GiB").value(), kGiB);
  EXPECT_EQ(ParseByteSize("3TiB").value(), 3 * kTiB);
  EXPECT_EQ(ParseByteSize("18446744073709551615").value(), 18446744073709551615u);
}

TEST(UnitsTest, RefusesWhatCouldBeReadInTwoWays) {
  for (const char* text : {"", "MiB", "8M", "8MB", "8mib", "8 MiB", " 8", "8 ", "-1", "+1",
                           "1.5GiB", "0x10", "8MiBs", "8MiBMiB"}) {
    EXPECT_THAT(ParseByteSize(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a size")))
        << "'" << text << "'";
  }
}

TEST(UnitsTest, RefusesSizesBeyond64Bits) {
  EXPECT_THAT(ParseByteSize("16777216TiB"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too large")));
  EXPECT_FALSE(ParseByteSize("18446744073709551616").ok());
}

TEST(UnitsTest, WritesSizesAsItReadsThem) {
  EXPECT_EQ(FormatByteSize(0), "0");
  EXPECT_EQ(FormatByteSize(1000), "1000");
  EXPECT_EQ(FormatByteSize(1536 * kKiB), "1536KiB");
  EXPECT_EQ(FormatByteSize(kTiB), "1TiB");
  for (const uint64_t bytes : {uint64_t{1}, 8 * kMiB, 8 * kMiB + 1, 5 * kGiB, ~uint64_t{0}}) {
    EXPECT_EQ(ParseByteSize(FormatByteSize(bytes)).value(), bytes);
  }
}

TEST(UnitsTest, AlignsToPages) {
  const uint64_t page = PageBytes();
  EXPECT_EQ(AlignDown(page - 1, page), 0u);
  EXPECT_EQ(AlignUp(1, page), page);
  EXPECT_EQ(AlignUp(page, page), page);
  EXPECT_EQ(DivideRoundingUp(0, page), 0u);
  EXPECT_EQ(DivideRoundingUp(page + 1, page), 2u);
}

}  // namespace
}  // namespace forestage
