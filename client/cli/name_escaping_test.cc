#include "client/cli/name_escaping.h"

#include <string>

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(EscapeNameTest, LeavesOrdinaryNamesAlone) {
  EXPECT_EQ(EscapeName("model.layers.0.mlp.down_proj.weight"),
            "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(EscapeName("../../x"), "../../x");
  EXPECT_EQ(EscapeName(""), "");
}

TEST(EscapeNameTest, EncodesSpaceControlCharactersAndThePercentSign) {
  EXPECT_EQ(EscapeName("a b"), "a%20b");
  EXPECT_EQ(EscapeName("a\tb\nc\rd"), "a%09b%0Ac%0Dd");
  EXPECT_EQ(EscapeName(std::string("a\0b", 3)), "a%00b");
  EXPECT_EQ(EscapeName("\x1b[31m\x7f"), "%1B[31m%7F");
  EXPECT_EQ(EscapeName("100%"), "100%25");
}

TEST(EscapeNameTest, EncodesUnicodeSpaceThatOtherLanguagesSplitAt) {
  EXPECT_EQ(EscapeName("a\xc2\xa0z"), "a%C2%A0z");         // no-break space
  EXPECT_EQ(EscapeName("a\xc2\x85z"), "a%C2%85z");         // next line
  EXPECT_EQ(EscapeName("a\xe2\x80\xa8z"), "a%E2%80%A8z");  // line separator
  EXPECT_EQ(EscapeName("a\xe3\x80\x80z"), "a%E3%80%80z");  // ideographic space
}

TEST(EscapeNameTest, KeepsOtherCharacters) {
  EXPECT_EQ(EscapeName("\xe5\xb1\x82.\xf0\x9f\x98\x80"), "\xe5\xb1\x82.\xf0\x9f\x98\x80");
}

TEST(EscapeNameTest, EncodesBytesThatAreNoText) {
  EXPECT_EQ(EscapeName("\xff\xc2"), "%FF%C2");
  EXPECT_EQ(EscapeName("\xff\xe5\xb1\x82\x80z"), "%FF\xe5\xb1\x82%80z");
}

}  // namespace
}  // namespace forestage
