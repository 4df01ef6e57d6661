#include "checkpoint/offender_list.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(OffenderListTest, ListsThemAndCountsTheRest) {
  OffenderList list;
  EXPECT_TRUE(list.empty());
  list.Add("a");
  list.Add("b");
  EXPECT_EQ(list.Text(), "a; b");
  for (size_t i = 2; i < kOffendersListedMax + 5; ++i) list.Add(absl::StrCat(i));
  list.AddUnlisted(10);
  EXPECT_EQ(list.count(), kOffendersListedMax + 15);
  EXPECT_THAT(list.Text(), EndsWith("; 999; and 15 more"));
}

TEST(OffenderListTest, QuotesAnyBytes) {
  EXPECT_EQ(QuotedName("a\n\x01'"), "'a\\n\\001\\''");
  EXPECT_EQ(QuotedName("a\xFF"), "'a\\377'");
  EXPECT_EQ(QuotedName("\u6a21"), "'\u6a21'");
  const std::string long_name = absl::StrCat("x", std::string(300, 'y'));
  EXPECT_THAT(QuotedName(long_name), EndsWith("...' (301 bytes)"));
  std::string wide = "x";
  for (int i = 0; i < 100; ++i) wide += "\u6a21";
  EXPECT_THAT(QuotedName(wide), StartsWith("'x\u6a21"));
  EXPECT_THAT(QuotedName(wide), EndsWith("\u6a21...' (301 bytes)"));
}

}  // namespace
}  // namespace forestage
