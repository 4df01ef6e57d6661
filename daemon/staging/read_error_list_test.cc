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

ReadError ReadFailed(uint32_t shard_index, absl::string_view message) {
  return {.shard_index = shard_index, .offset = 0, .status = absl::UnavailableError(message)};
}

ReadError EndsBefore(uint32_t shard_index, uint64_t offset, absl::string_view message) {
  return {.shard_index = shard_index, .offset = offset, .status = absl::OutOfRangeError(message)};
}

ReadError Changed(uint32_t shard_index, absl::string_view message) {
  return {
      .shard_index = shard_index, .offset = 0, .status = absl::FailedPreconditionError(message)};
}

TEST(ReadErrorListTest, KeepsErrorsInOrder) {
  ReadErrorList errors;
  EXPECT_TRUE(errors.empty());
  EXPECT_THAT(errors.Messages(), IsEmpty());
  EXPECT_TRUE(errors.Add(ReadFailed(3, "a")));
  EXPECT_TRUE(errors.Add(ReadFailed(3, "b")));
  EXPECT_TRUE(errors.Add(ReadFailed(1, "c")));
  EXPECT_FALSE(errors.empty());
  EXPECT_THAT(errors.Messages(), ElementsAre("a", "b", "c"));
}

TEST(ReadErrorListTest, SaysTheSameOfAShardOnce) {
  ReadErrorList errors;
  EXPECT_TRUE(errors.Add(ReadFailed(3, "changed")));
  EXPECT_FALSE(errors.Add(ReadFailed(3, "changed")));
  EXPECT_TRUE(errors.Add(ReadFailed(1, "changed")));
  EXPECT_THAT(errors.Messages(), ElementsAre("changed", "changed"));
}

TEST(ReadErrorListTest, NamesAFileThatWasChangedOnceHoweverOftenItChanges) {
  ReadErrorList errors;
  EXPECT_FALSE(errors.TellsOfWholeFile(3));
  EXPECT_TRUE(errors.Add(Changed(3, "has 8 bytes")));
  EXPECT_TRUE(errors.TellsOfWholeFile(3));
  EXPECT_FALSE(errors.Add(Changed(3, "has 9 bytes")));
  EXPECT_FALSE(errors.Add(EndsBefore(3, 0, "ends at 8")));
  EXPECT_TRUE(errors.Add(Changed(1, "has 8 bytes")));
  EXPECT_THAT(errors.Messages(), ElementsAre("has 8 bytes", "has 8 bytes"));
}

TEST(ReadErrorListTest, TellsWhereAFileEndsByTheExtentThatKnows) {
  ReadErrorList errors;
  EXPECT_TRUE(errors.Add(EndsBefore(3, 200, "ends at 200")));
  EXPECT_FALSE(errors.Add(EndsBefore(3, 300, "ends at 300")));
  EXPECT_TRUE(errors.Add(EndsBefore(3, 100, "ends at 150")));
  EXPECT_TRUE(errors.Add(ReadFailed(3, "EIO at 50")));
  EXPECT_FALSE(errors.Add(Changed(3, "has 150 bytes")));
  EXPECT_TRUE(errors.Add(EndsBefore(1, 300, "ends at 300")));
  EXPECT_THAT(errors.Messages(), ElementsAre("ends at 150", "EIO at 50", "ends at 300"));
}

TEST(ReadErrorListTest, AShardThatFailsInManyPlacesHidesNoOther) {
  ReadErrorList errors;
  for (size_t i = 0; i < 5 * kReadErrorsKept; ++i) {
    EXPECT_EQ(errors.Add(ReadFailed(0, absl::StrCat("first ", i))), i < kReadErrorsKept);
  }
  EXPECT_TRUE(errors.Add(ReadFailed(1, "second")));
  EXPECT_FALSE(errors.Add(ReadFailed(1, "second again")));
  EXPECT_TRUE(errors.Add(ReadFailed(2, "third")));
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
    EXPECT_EQ(errors.Add(ReadFailed(i, absl::StrCat(i))), i < kReadErrorsKept);
  }
  EXPECT_EQ(errors.Messages().back(),
            absl::StrCat("and 4 more; reads failed in ", kReadErrorsKept + 4, " files"));
}

}  // namespace
}  // namespace forestage
