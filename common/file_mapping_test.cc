#include "common/file_mapping.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "common/errno_status.h"
#include "common/memfd.h"
#include "common/status_matchers.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace forestage {
namespace {

// An unnamed file on a real file system, of `bytes` bytes 'a', 'b', ... page by page.
UniqueFd MakeFile(uint64_t pages) {
  std::string pattern = ::testing::TempDir() + "/forestage_mapping_XXXXXX";
  UniqueFd fd(mkstemp(pattern.data()));
  EXPECT_TRUE(fd.valid());
  unlink(pattern.c_str());
  for (uint64_t page = 0; page < pages; ++page) {
    const std::string text(PageBytes(), static_cast<char>('a' + page));
    EXPECT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  return fd;
}

TEST(FileMappingTest, ShowsTheFilesBytesAndOutlivesItsDescriptor) {
  UniqueFd fd = MakeFile(3);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping,
                       FileMapping::MapReadOnly(fd.get(), 3 * PageBytes()));
  fd.Reset();
  ASSERT_EQ(mapping.bytes().size(), 3 * PageBytes());
  EXPECT_OK(mapping.PopulateRead(0, 3 * PageBytes()));
  EXPECT_EQ(mapping.bytes()[0], std::byte{'a'});
  EXPECT_EQ(mapping.bytes()[3 * PageBytes() - 1], std::byte{'c'});
}

TEST(FileMappingTest, WritesThroughToTheFile) {
  const UniqueFd fd = MakeFile(1);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping, FileMapping::MapReadWrite(fd.get(), PageBytes()));
  mapping.writable_bytes()[5] = std::byte{'!'};
  char byte = 0;
  ASSERT_EQ(pread(fd.get(), &byte, 1, 5), 1);
  EXPECT_EQ(byte, '!');
}

TEST(FileMappingTest, NothingIsAnEmptyMapping) {
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping, FileMapping::MapReadOnly(-1, 0));
  EXPECT_TRUE(mapping.empty());
  EXPECT_TRUE(mapping.bytes().empty());
  EXPECT_OK(mapping.PopulateRead(0, 0));
}

TEST(FileMappingTest, KeepsTheErrnoOfWhatCannotBeMapped) {
  const UniqueFd directory(open(::testing::TempDir().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(directory.valid());
  const absl::Status refused = FileMapping::MapReadOnly(directory.get(), PageBytes()).status();
  EXPECT_EQ(ErrnoOf(refused), ENODEV) << refused;
  EXPECT_EQ(ErrnoOf(FileMapping::MapReadOnly(-1, PageBytes()).status()), EBADF);
}

TEST(FileMappingTest, MovingHandsTheMappingOver) {
  const UniqueFd fd = MakeFile(2);
  ASSERT_OK_AND_ASSIGN(FileMapping first, FileMapping::MapReadOnly(fd.get(), PageBytes()));
  ASSERT_OK_AND_ASSIGN(FileMapping second, FileMapping::MapReadOnly(fd.get(), 2 * PageBytes()));
  second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
  ASSERT_EQ(second.bytes().size(), PageBytes());
  EXPECT_EQ(second.bytes()[0], std::byte{'a'});
  const FileMapping third(std::move(second));
  EXPECT_EQ(third.bytes()[PageBytes() - 1], std::byte{'a'});
}

TEST(FileMappingTest, PopulatesRangesThatDoNotBeginOrEndAtAPage) {
  const UniqueFd fd = MakeFile(4);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping,
                       FileMapping::MapReadOnly(fd.get(), 4 * PageBytes() - 7));
  EXPECT_OK(mapping.PopulateRead(1, 2));
  EXPECT_OK(mapping.PopulateRead(PageBytes() - 1, 3 * PageBytes() + 1));
  EXPECT_OK(mapping.PopulateRead(0, 4 * PageBytes() - 7));
}

TEST(FileMappingTest, PopulatingBeyondATruncatedFileIsAnErrorNotASignal) {
  const UniqueFd fd = MakeFile(8);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping,
                       FileMapping::MapReadOnly(fd.get(), 8 * PageBytes()));
  ASSERT_OK(mapping.PopulateRead(0, 8 * PageBytes()));
  ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(2 * PageBytes())), 0);
  EXPECT_OK(mapping.PopulateRead(0, 2 * PageBytes()));
  const absl::Status beyond = mapping.PopulateRead(0, 8 * PageBytes());
  EXPECT_FALSE(beyond.ok());
  EXPECT_EQ(ErrnoOf(beyond), EFAULT) << beyond;
  EXPECT_EQ(ErrnoOf(mapping.PopulateRead(7 * PageBytes(), 8 * PageBytes())), EFAULT);
}

TEST(FileMappingTest, AMappingLongerThanItsFileIsAnErrorWhenPopulated) {
  const UniqueFd fd = MakeFile(1);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping,
                       FileMapping::MapReadOnly(fd.get(), 3 * PageBytes()));
  EXPECT_OK(mapping.PopulateRead(0, PageBytes()));
  EXPECT_EQ(ErrnoOf(mapping.PopulateRead(0, 3 * PageBytes())), EFAULT);
}

TEST(FileMappingTest, WhatIsLetGoCanStillBeRead) {
  const UniqueFd fd = MakeFile(3);
  const uint64_t bytes = 3 * PageBytes();
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping, FileMapping::MapReadOnly(fd.get(), bytes));
  ASSERT_OK(mapping.PopulateRead(0, bytes));
  mapping.LetGo(0, 0);
  mapping.LetGo(1, 2);
  mapping.LetGo(1, bytes);
  for (uint64_t page = 0; page < 3; ++page) {
    EXPECT_EQ(mapping.bytes()[page * PageBytes()], static_cast<std::byte>('a' + page));
  }
}

}  // namespace
}  // namespace forestage
