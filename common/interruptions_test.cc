#include "common/interruptions.h"

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(InterruptionsTest, OnlyAnInterruptedCallIsMadeAgain) {
  Interruptions interruptions;
  EXPECT_TRUE(interruptions.MayRetry(EINTR));
  EXPECT_FALSE(interruptions.MayRetry(EIO));
  EXPECT_FALSE(interruptions.MayRetry(EAGAIN));
  EXPECT_TRUE(interruptions.MayRetry(EINTR));
}

TEST(InterruptionsTest, ACallThatIsAlwaysInterruptedIsGivenUp) {
  Interruptions interruptions;
  int count = 0;
  while (interruptions.MayRetry(EINTR)) ++count;
  EXPECT_GE(count, 100);
  EXPECT_LE(count, 10'000);
  EXPECT_FALSE(interruptions.MayRetry(EINTR));
}

}  // namespace
}  // namespace forestage
