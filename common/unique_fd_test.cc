#include "common/unique_fd.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace forestage {
namespace {

int OpenNull() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesWhenItGoes) {
  int number = -1;
  {
    const UniqueFd fd(OpenNull());
    ASSERT_TRUE(fd.valid());
    number = fd.get();
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
  EXPECT_EQ(errno, EBADF);
}

TEST(UniqueFdTest, MovingHandsTheDescriptorOver) {
  UniqueFd first(OpenNull());
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_EQ(second.get(), number);
  EXPECT_TRUE(IsOpen(number));
  UniqueFd third(OpenNull());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(number));
}

TEST(UniqueFdTest, AMovedFromOneHoldsNothing) {
  UniqueFd first(OpenNull());
  const UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_TRUE(second.valid());
}

TEST(UniqueFdTest, MovingToItselfKeepsTheDescriptor) {
  UniqueFd fd(OpenNull());
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_TRUE(fd.valid());
  EXPECT_TRUE(IsOpen(fd.get()));
}

TEST(UniqueFdTest, ReleaseGivesTheDescriptorAway) {
  int number = -1;
  {
    UniqueFd fd(OpenNull());
    number = fd.Release();
    EXPECT_FALSE(fd.valid());
  }
  EXPECT_TRUE(IsOpen(number));
  close(number);
}

TEST(UniqueFdTest, ResetClosesTheOldOne) {
  UniqueFd fd(OpenNull());
  const int first = fd.get();
  const int second = OpenNull();
  fd.Reset(second);
  EXPECT_FALSE(IsOpen(first));
  EXPECT_EQ(fd.get(), second);
  fd.Reset();
  EXPECT_FALSE(fd.valid());
  EXPECT_FALSE(IsOpen(second));
}

}  // namespace
}  // namespace forestage
