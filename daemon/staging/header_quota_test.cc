#include "daemon/staging/header_quota.h"

#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HeaderQuotaTest, OneUserLeavesOthersTheirPartAndAllHaveNoMoreThanThereIs) {
  HeaderQuota quota({.bytes_max = 100, .user_bytes_max = 75});
  const auto first = quota.MakeHold(7);
  EXPECT_OK(first->Add(40));
  EXPECT_OK(first->Add(20));
  auto second = quota.MakeHold(7);
  EXPECT_THAT(second->Add(16), StatusIs(absl::StatusCode::kResourceExhausted,
                                        AllOf(HasSubstr("uid 7 has 60 bytes"),
                                              HasSubstr("may have 75"), HasSubstr("at least 16"))));
  EXPECT_OK(second->Add(15));
  const auto other = quota.MakeHold(8);
  EXPECT_OK(other->Add(25));
  EXPECT_THAT(other->Add(1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("all users have 100 bytes"), HasSubstr("at least 26"))));
  second.reset();
  EXPECT_OK(other->Add(15));
  EXPECT_FALSE(other->Add(UINT64_MAX).ok());
}

TEST(HeaderQuotaTest, AHoldOutlivesTheQuota) {
  std::optional<HeaderQuota> quota(HeaderQuota::Options{.bytes_max = 9, .user_bytes_max = 9});
  const auto hold = quota->MakeHold(7);
  quota.reset();
  EXPECT_OK(hold->Add(9));
  EXPECT_FALSE(hold->Add(1).ok());
}

TEST(HeaderQuotaTest, ManyThreadsEndWithNothingHeld) {
  HeaderQuota quota({.bytes_max = 100, .user_bytes_max = 75});
  std::vector<std::thread> threads;
  for (uid_t uid = 0; uid < 4; ++uid) {
    threads.emplace_back([&quota, uid] {
      for (int round = 0; round < 1000; ++round) {
        const auto hold = quota.MakeHold(uid % 2);
        (void)hold->Add(50);
        (void)hold->Add(30);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_OK(quota.MakeHold(0)->Add(75));
  EXPECT_OK(quota.MakeHold(1)->Add(75));
}

}  // namespace
}  // namespace forestage
