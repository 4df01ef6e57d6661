#include "client/cli/text_table.h"

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(TextTableTest, AlignsColumnsAndTrimsLineEnds) {
  TextTable table({{"NAME"}, {"SIZE", TextTable::Align::kRight}, {"WHY"}});
  table.AddRow({"a", "1 B", ""});
  table.AddRow({"longer", "1024 B", "because"});
  EXPECT_EQ(table.ToString(),
            "NAME      SIZE  WHY\n"
            "a          1 B\n"
            "longer  1024 B  because\n");
}

TEST(TextTableTest, CountsCharactersNotBytes) {
  TextTable table({{"N"}, {"M"}});
  table.AddRow({"\xc3\xa4\xc3\xb6", "x"});
  table.AddRow({"ab", "y"});
  EXPECT_EQ(table.ToString(), "N   M\n\xc3\xa4\xc3\xb6  x\nab  y\n");
}

}  // namespace
}  // namespace forestage
