#include "common/file_open.h"

#include <fcntl.h>

#include <cerrno>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/file_time.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

TEST(FileOpenTest, OpensAFileThatNoChildInherits) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.path() + "/file";
  std::ofstream(path) << "bytes";
  const UniqueFd fd = OpenForReading(path);
  ASSERT_TRUE(fd.valid());
  EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
}

TEST(FileOpenTest, DoesNotWaitForTheWriterOfAFifo) {
  const TemporaryDirectoryForTest directory;
  const std::string path = directory.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(OpenForReading(path).valid());
}

TEST(FileOpenTest, SaysInErrnoWhyNot) {
  const TemporaryDirectoryForTest directory;
  errno = 0;
  EXPECT_FALSE(OpenForReading(directory.path() + "/none").valid());
  EXPECT_EQ(errno, ENOENT);
}

TEST(FileOpenTest, TakesFlagsOfTheCaller) {
  const TemporaryDirectoryForTest directory;
  const UniqueFd fd = OpenWithFlags(directory.path(), O_PATH);
  ASSERT_TRUE(fd.valid());
  EXPECT_EQ(fcntl(fd.get(), F_GETFL) & O_PATH, O_PATH);
  EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST(FileTimeTest, CountsNanosecondsAlsoBeforeTheClockBegins) {
  EXPECT_EQ(NanosecondsOf(timespec{.tv_sec = 1'700'000'000, .tv_nsec = 999'999'999}),
            1'700'000'000'999'999'999);
  EXPECT_EQ(NanosecondsOf(timespec{.tv_sec = -1, .tv_nsec = 1}), -999'999'999);
}

}  // namespace
}  // namespace forestage
