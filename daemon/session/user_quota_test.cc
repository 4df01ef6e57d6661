#include "daemon/session/user_quota.h"

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

TEST(UserQuotaTest, OneUserCannotHaveMoreThanItsShareAndOthersHaveTheirs) {
  UserQuota quota({.sessions_max = 2, .descriptors_max = 10});
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<UserQuota::Charge> first, quota.ChargeSession(7));
  ASSERT_OK_AND_ASSIGN(const auto second, quota.ChargeSession(7));
  EXPECT_THAT(quota.ChargeSession(7).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("uid 7"), HasSubstr("sessions-per-uid-max"))));
  EXPECT_OK(quota.ChargeSession(8));
  first.reset();
  EXPECT_OK(quota.ChargeSession(7));
}

TEST(UserQuotaTest, DescriptorsCountUntilTheLastChargeForThemGoes) {
  UserQuota quota({.sessions_max = 9, .descriptors_max = 10});
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<UserQuota::Charge> session, quota.ChargeSession(7));
  ASSERT_OK_AND_ASSIGN(const auto other, quota.ChargeSession(7));
  EXPECT_OK(session->AddDescriptors(8));
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("LimitNOFILE"));
  EXPECT_THAT(other->AddDescriptors(3), full);
  EXPECT_OK(other->AddDescriptors(2));
  std::shared_ptr<UserQuota::Charge> files = session->SplitDescriptors();
  session.reset();
  EXPECT_THAT(other->AddDescriptors(1), full);
  files.reset();
  EXPECT_OK(other->AddDescriptors(8));
  other->DropDescriptors();
  EXPECT_OK(other->AddDescriptors(10));
  EXPECT_THAT(other->AddDescriptors(SIZE_MAX), full);
}

TEST(UserQuotaTest, ChargeOutlivesTheQuota) {
  std::optional<UserQuota> quota(UserQuota::Options{.sessions_max = 1, .descriptors_max = 1});
  ASSERT_OK_AND_ASSIGN(const auto charge, quota->ChargeSession(7));
  quota.reset();
  EXPECT_OK(charge->AddDescriptors(1));
}

TEST(UserQuotaTest, ManyThreadsEndWithNothingCharged) {
  UserQuota quota({.sessions_max = 3, .descriptors_max = 100});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&quota] {
      for (int round = 0; round < 1000; ++round) {
        const auto charge = quota.ChargeSession(7);
        if (!charge.ok()) continue;
        (void)(*charge)->AddDescriptors(60);
        const auto files = (*charge)->SplitDescriptors();
        (void)(*charge)->AddDescriptors(30);
        (*charge)->DropDescriptors();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK_AND_ASSIGN(const auto charge, quota.ChargeSession(7));
  EXPECT_OK(charge->AddDescriptors(100));
}

}  // namespace
}  // namespace forestage
