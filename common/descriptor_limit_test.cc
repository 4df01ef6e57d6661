#include "common/descriptor_limit.h"

#include <algorithm>

#include "gtest/gtest.h"
#include <sys/resource.h>

namespace forestage {
namespace {

rlimit LimitNow() {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

class DescriptorLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    rlimit low = before_;
    low.rlim_cur = 100;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  void TearDown() override { setrlimit(RLIMIT_NOFILE, &before_); }

  const rlimit before_ = LimitNow();
};

TEST_F(DescriptorLimitTest, RaisesTheSoftLimitByWhatIsAsked) {
  RaiseDescriptorLimit(50);
  EXPECT_EQ(LimitNow().rlim_cur, std::min<rlim_t>(150, before_.rlim_max));
}

TEST_F(DescriptorLimitTest, StopsAtTheHardLimit) {
  RaiseDescriptorLimit(UINT64_MAX);
  EXPECT_EQ(LimitNow().rlim_cur, before_.rlim_max);
}

}  // namespace
}  // namespace forestage
