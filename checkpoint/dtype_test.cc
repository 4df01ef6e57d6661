#include "checkpoint/dtype.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(DtypeTest, NamesAndNumbersGoBothWays) {
  std::set<std::string> names;
  for (int i = 0; i < kDtypeCount; ++i) {
    const std::optional<Dtype> dtype = DtypeFromNumber(static_cast<uint8_t>(i));
    ASSERT_TRUE(dtype.has_value());
    EXPECT_EQ(static_cast<int>(*dtype), i);
    EXPECT_EQ(DtypeFromName(DtypeName(*dtype)), dtype);
    names.insert(std::string(DtypeName(*dtype)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kDtypeCount));
  EXPECT_EQ(DtypeFromNumber(kDtypeCount), std::nullopt);
  EXPECT_EQ(DtypeFromNumber(255), std::nullopt);
}

TEST(DtypeTest, NamesAreExact) {
  for (const char* name : {"", "i32", "I32 ", "I3", "C128", "F8_E3M4"}) {
    EXPECT_EQ(DtypeFromName(name), std::nullopt) << name;
  }
}

// The numbers stand in catalogs.
TEST(DtypeTest, NumbersNeverChange) {
  EXPECT_EQ(DtypeName(static_cast<Dtype>(0)), "BOOL");
  EXPECT_EQ(DtypeName(static_cast<Dtype>(1)), "F4");
  EXPECT_EQ(DtypeName(static_cast<Dtype>(7)), "F8_E4M3");
  EXPECT_EQ(DtypeName(static_cast<Dtype>(14)), "BF16");
  EXPECT_EQ(DtypeName(static_cast<Dtype>(21)), "U64");
}

TEST(DtypeTest, KnowsBits) {
  EXPECT_EQ(DtypeBits(Dtype::kF4), 4u);
  EXPECT_EQ(DtypeBits(Dtype::kF6E3M2), 6u);
  EXPECT_EQ(DtypeBits(Dtype::kBool), 8u);
  EXPECT_EQ(DtypeBits(Dtype::kBF16), 16u);
  EXPECT_EQ(DtypeBits(Dtype::kF32), 32u);
  EXPECT_EQ(DtypeBits(Dtype::kC64), 64u);
}

}  // namespace
}  // namespace forestage
