#include "daemon/staging/read_error_list.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "daemon/limits.h"

namespace forestage {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReadErrorListTest, KeepsErrorsInOrder) {
  ReadErrorList errors;
  EXPECT_TRUE(errors.empty());
  EXPECT_THAT(errors.Messages(), IsEmpty());
  EXPECT_TRUE(errors.Add(3, "a"));
  EXPECT_TRUE(errors.Add(3, "b"));
  EXPECT_TRUE(errors.Add(1, "c"));
  EXPECT_FALSE(errors.empty());
  EXPECT_THAT(errors.Messages(), ElementsAre("a", "b", "c"));
}

TEST(ReadErrorListTest, SaysTheSameOfAShardOnce) {
  ReadErrorList errors;
  EXPECT_TRUE(errors.Add(3, "changed"));
  EXPECT_FALSE(errors.Add(3, "changed"));
  EXPECT_TRUE(errors.Add(1, "changed"));
  EXPECT_THAT(errors.Messages(), ElementsAre("changed", "changed"));
}

TEST(ReadErrorListTest, AShardThatFailsInManyPlacesHidesNoOther) {
  ReadErrorList errors;
  for (size_t i = 0; i < 5 * kReadErrorsKept; ++i) {
    EXPECT_EQ(errors.Add(0, absl::StrCat("first ", i)), i < kReadErrorsKept);
  }
  EXPECT_TRUE(errors.Add(1, "second"));
  EXPECT_FALSE(errors.Add(1, "second again"));
  EXPECT_TRUE(errors.Add(2, "third"));
  const std::vector<std::string> messages = errors.Messages();
  ASSERT_EQ(messages.size(), kReadErrorsKept + 1);
  EXPECT_EQ(messages.front(), "first 0");
  EXPECT_THAT(messages, Contains("second"));
  EXPECT_THAT(messages, Contains("third"));
  EXPECT_EQ(messages.back(),
            absl::StrCat("and ", 4 * kReadErrorsKept + 3, " more; reads failed in 3 files"));
}

TEST(ReadErrorListTest, CountsWhatItCannotName) {
  ReadErrorList errors;
  for (uint32_t i = 0; i < kReadErrorsKept + 4; ++i) {
    EXPECT_EQ(errors.Add(i, absl::StrCat(i)), i < kReadErrorsKept);
  }
  EXPECT_EQ(errors.Messages().back(),
            absl::StrCat("and 4 more; reads failed in ", kReadErrorsKept + 4, " files"));
}

}  // namespace
}  // namespace forestage
