#include "daemon/session/user_quota.h"

#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

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
  EXPECT_THAT(other->AddDescriptors(3),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("uid 7 wants 3 more descriptors, has 8 with the daemon and may "
                                 "have 10; raise")));
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

TEST(UserQuotaTest, StagedBytesCountOnceAUserAndCheckpointUntilTheLastHolderGoes) {
  UserQuota quota({.sessions_max = 9, .descriptors_max = 9, .staged_bytes_max = 10 * kKiB});
  const int a = 0;
  const int b = 0;
  ASSERT_OK_AND_ASSIGN(auto first, quota.HoldStaged(7, &a, 6 * kKiB));
  ASSERT_OK_AND_ASSIGN(auto second, quota.HoldStaged(7, &a, 6 * kKiB));
  EXPECT_THAT(quota.HoldStaged(7, &b, 5 * kKiB).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "checkpoint needs 5.00 KiB of memory, 4.00 KiB available: "
                       "staged-bytes-per-uid-max 10.00 KiB - 6.00 KiB of other checkpoints of "
                       "uid 7"));
  // Neither others nor what just fits.
  ASSERT_OK_AND_ASSIGN(const auto of_other, quota.HoldStaged(8, &a, 10 * kKiB));
  ASSERT_OK_AND_ASSIGN(auto fits, quota.HoldStaged(7, &b, 4 * kKiB));
  EXPECT_THAT(quota.StagedBytes(), ElementsAre(Pair(7, 10 * kKiB), Pair(8, 10 * kKiB)));
  fits.reset();
  first.reset();
  EXPECT_FALSE(quota.HoldStaged(7, &b, 5 * kKiB).ok());
  second.reset();
  EXPECT_OK(quota.HoldStaged(7, &b, 5 * kKiB));
  EXPECT_THAT(quota.StagedBytes(), ElementsAre(Pair(8, 10 * kKiB)));
}

TEST(UserQuotaTest, WhatIsKeptWithoutComparingCountsAllTheSame) {
  UserQuota quota({.sessions_max = 9, .descriptors_max = 9, .staged_bytes_max = 10});
  const int a = 0;
  const int b = 0;
  auto kept = quota.KeepStaged(7, &a, 12);
  EXPECT_THAT(quota.HoldStaged(7, &b, 1).status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                                            HasSubstr("1 B of memory, 0 B avail")));
  // What is larger than all numbers ends there.
  auto huge = quota.KeepStaged(7, &b, UINT64_MAX);
  EXPECT_THAT(quota.StagedBytes(), ElementsAre(Pair(7, UINT64_MAX)));
  huge.reset();
  EXPECT_THAT(quota.StagedBytes(), ElementsAre(Pair(7, 12)));
  kept.reset();
  EXPECT_OK(quota.HoldStaged(7, &b, 10));
}

TEST(UserQuotaTest, StagedBytesWithoutALimitFitAlways) {
  UserQuota quota({.sessions_max = 9, .descriptors_max = 9});
  const int a = 0;
  const int b = 0;
  ASSERT_OK_AND_ASSIGN(const auto one, quota.HoldStaged(7, &a, UINT64_MAX - 5));
  EXPECT_OK(quota.HoldStaged(7, &b, 5));
}

TEST(UserQuotaTest, ManyThreadsEndWithNothingCharged) {
  UserQuota quota({.sessions_max = 3, .descriptors_max = 100, .staged_bytes_max = 5});
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
        const auto one = quota.HoldStaged(7, &quota, 5);
        const auto other = quota.KeepStaged(7, &charge, 5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK_AND_ASSIGN(const auto charge, quota.ChargeSession(7));
  EXPECT_OK(charge->AddDescriptors(100));
  EXPECT_TRUE(quota.StagedBytes().empty());
}

}  // namespace
}  // namespace forestage
