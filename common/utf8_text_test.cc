#include "common/utf8_text.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

TEST(Utf8TextTest, LeavesTextAsItIs) {
  for (const absl::string_view text :
       {"", "model-00001.safetensors", "a\nb", "\xe6\xa8\xa1\xe5\x9e\x8b", "\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(Utf8Text(text), text);
  }
}

TEST(Utf8TextTest, EscapesBytesThatAreNoText) {
  // A lone byte, a cut character, an overlong form, a surrogate, beyond the last character.
  for (const absl::string_view text :
       {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe6\xa8", "\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
    EXPECT_TRUE(IsUtf8(Utf8Text(text)));
  }
  EXPECT_EQ(Utf8Text("a\xff"), "a\\xff");
  EXPECT_NE(Utf8Text("\xff"), Utf8Text("\xfe"));
}

TEST(LineTextTest, EscapesWhatATerminalObeysOrCannotShow) {
  EXPECT_EQ(LineText("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(LineText("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(LineText(absl::string_view("\0", 1)), "\\x00");
  // The next line of ISO 8859, and a cut character before one that is whole.
  EXPECT_EQ(LineText("\xc2\x85"), "\\xc2\\x85");
  EXPECT_EQ(LineText("\xff\xe6\xa8'\xe6\xa8\xa1"), "\\xff\\xe6\\xa8'\xe6\xa8\xa1");
  EXPECT_EQ(LineText("it's \\ \"this\" \xc2\xa0"), "it's \\ \"this\" \xc2\xa0");
  EXPECT_EQ(LineText(""), "");
}

TEST(LineTextTest, LinesStayApartInATextOfSeveral) {
  EXPECT_EQ(LinesText("a\n\tb\x1b\n\xff"), "a\n\tb\\x1b\n\\xff");
}

}  // namespace
}  // namespace forestage
