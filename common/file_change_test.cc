#include "common/file_change.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr FileStamp kThen = {
    .device = 1, .inode = 2, .bytes = 9, .mtime_ns = 3, .ctime_ns = 4, .links = 1};

FileStamp Changed(void (*change)(FileStamp& stamp)) {
  FileStamp now = kThen;
  // As every change does.
  now.ctime_ns = 5;
  change(now);
  return now;
}

TEST(FileChangeTest, SaysNothingOfAFileThatIsTheSame) {
  EXPECT_EQ(FileChangeText(kThen, kThen), "");
}

TEST(FileChangeTest, SaysInWordsWhatChanged) {
  EXPECT_EQ(FileChangeText(kThen, Changed([](FileStamp& now) { now.inode = 7; })),
            "another file has its name now");
  EXPECT_EQ(FileChangeText(kThen, Changed([](FileStamp& now) { now.bytes = 5; })),
            "it has 5 bytes now and had 9");
  EXPECT_THAT(FileChangeText(kThen, Changed([](FileStamp& now) { now.mtime_ns = 5; })),
              AllOf(HasSubstr("it was written to"), HasSubstr("9 bytes are as many as before")));
  EXPECT_THAT(FileChangeText(kThen, Changed([](FileStamp& now) { now.links = 0; })),
              AllOf(HasSubstr("it was deleted"), HasSubstr("size and modification time are as")));
  // A rename, a chmod, or a time that was set back: nobody can tell them apart.
  EXPECT_THAT(
      FileChangeText(kThen, Changed([](FileStamp&) {})),
      AllOf(HasSubstr("links, owner or rights"), HasSubstr("set back"), Not(HasSubstr("9"))));
}

TEST(FileChangeTest, TheMessageSaysWhichFileSinceWhenWhatAndWhatToDo) {
  EXPECT_EQ(FileChangedMessage("/a/b", "it was opened", kThen,
                               Changed([](FileStamp& now) { now.bytes = 5; }), "load it again"),
            "/a/b: the file was changed since it was opened: it has 5 bytes now and had 9; load it "
            "again");
}

}  // namespace
}  // namespace forestage
