#include "daemon/session/group.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::UnixEpoch();
const absl::Time kDeadline = kStart + absl::Seconds(60);
constexpr CheckpointSignature kSignature = {1};
constexpr CheckpointSignature kOtherSignature = {2};

GroupMember Rank(uint32_t rank, uint32_t size, SessionAgreement agreement,
                 SessionPolicy policy = SessionPolicy::kAuto) {
  return {.session = rank + 100,
          .local_rank = rank,
          .local_size = size,
          .policy = policy,
          .agreement = agreement,
          .pid = 1000 + rank};
}
GroupMember Eager(uint32_t rank, uint32_t size, SessionPolicy policy = SessionPolicy::kAuto) {
  return Rank(rank, size, SessionAgreement::kEager, policy);
}
GroupMember Strict(uint32_t rank, uint32_t size, SessionPolicy policy = SessionPolicy::kAuto) {
  return Rank(rank, size, SessionAgreement::kStrict, policy);
}

// The one outcome that is due.
SessionDecision OnlyDecision(Group& group, absl::Time now = kStart) {
  const std::vector<Group::Outcome> outcomes = group.TakeOutcomes(now);
  EXPECT_THAT(outcomes, SizeIs(1));
  return outcomes.empty() ? SessionDecision() : outcomes[0].decision;
}

TEST(GroupTest, EagerTellsEachRankWhenItIsReady) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  EXPECT_THAT(group.TakeOutcomes(kStart), IsEmpty());
  group.ReportReady(100, kSignature);
  EXPECT_TRUE(group.MayReadAhead(100));
  group.NoteReadingBegan();
  const SessionDecision first = OnlyDecision(group);
  EXPECT_EQ(first.requested, SessionPolicy::kAuto);
  EXPECT_EQ(first.effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_TRUE(first.activated);
  EXPECT_EQ(first.reason_class, ReasonClass::kChosenByDaemon);
  EXPECT_THAT(group.TakeOutcomes(kStart), IsEmpty());

  // Twenty seconds later, and long after every deadline: the stored decision.
  ASSERT_OK(group.Join(Eager(1, 2)));
  group.ReportReady(101, kSignature);
  EXPECT_EQ(OnlyDecision(group, kDeadline + absl::Seconds(20)).effective,
            SessionPolicy::kRankStripedReadAhead);
}

TEST(GroupTest, TheFirstRanksWishForNativeDecidesAndIsNamed) {
  Group group(Eager(1, 2, SessionPolicy::kNative), kDeadline);
  ASSERT_OK(group.Join(Eager(1, 2, SessionPolicy::kNative)));
  group.ReportReady(101, kSignature);
  EXPECT_FALSE(group.MayReadAhead(101));
  const SessionDecision decider = OnlyDecision(group);
  EXPECT_EQ(decider.effective, SessionPolicy::kNative);
  EXPECT_FALSE(decider.activated);
  EXPECT_EQ(decider.reason_class, ReasonClass::kRequested);

  ASSERT_OK(group.Join(Eager(0, 2, SessionPolicy::kRankStripedReadAhead)));
  group.ReportReady(100, kSignature);
  const SessionDecision follower = OnlyDecision(group);
  EXPECT_EQ(follower.requested, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(follower.effective, SessionPolicy::kNative);
  EXPECT_EQ(follower.reason_class, ReasonClass::kNativeInGroup);
  EXPECT_THAT(follower.reason, AllOf(HasSubstr("rank 1"), HasSubstr("pid 1001")));
}

TEST(GroupTest, ALaterWishForNativeGetsTheGroupsDecision) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  ASSERT_OK(group.Join(Eager(1, 2, SessionPolicy::kNative)));
  group.ReportReady(101, kSignature);
  const SessionDecision decision = OnlyDecision(group);
  EXPECT_EQ(decision.requested, SessionPolicy::kNative);
  EXPECT_EQ(decision.effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(decision.reason_class, ReasonClass::kDecidedByGroup);
  EXPECT_THAT(decision.reason, AllOf(HasSubstr("rank 0"), HasSubstr("pid 1000")));
}

TEST(GroupTest, EagerRankThatSeesAnotherCheckpointGetsNative) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  ASSERT_OK(group.Join(Eager(1, 2)));
  group.ReportReady(101, kSignature);
  group.NoteReadingBegan();
  EXPECT_EQ(OnlyDecision(group).effective, SessionPolicy::kRankStripedReadAhead);
  group.ReportReady(100, kOtherSignature);
  EXPECT_FALSE(group.MayReadAhead(100));
  const SessionDecision decision = OnlyDecision(group);
  EXPECT_EQ(decision.effective, SessionPolicy::kNative);
  EXPECT_FALSE(decision.activated);
  EXPECT_EQ(decision.reason_class, ReasonClass::kSignatureMismatch);
  EXPECT_THAT(decision.reason, HasSubstr("rank 1"));
}

TEST(GroupTest, StrictTellsNobodyBeforeAllAreReady) {
  Group group(Strict(0, 2), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 2)));
  group.ReportReady(100, kSignature);
  EXPECT_TRUE(group.MayReadAhead(100)) << "reading starts at the first open";
  group.NoteReadingBegan();
  ASSERT_OK(group.Join(Strict(1, 2)));
  EXPECT_THAT(group.TakeOutcomes(kDeadline - absl::Seconds(1)), IsEmpty());
  EXPECT_EQ(group.deadline(), kDeadline);
  group.ReportReady(101, kSignature);
  const std::vector<Group::Outcome> outcomes = group.TakeOutcomes(kDeadline - absl::Seconds(1));
  ASSERT_THAT(outcomes, SizeIs(2));
  for (const Group::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.decision.effective, SessionPolicy::kRankStripedReadAhead);
    EXPECT_TRUE(outcome.decision.activated);
  }
  EXPECT_EQ(group.deadline(), std::nullopt);
}

TEST(GroupTest, StrictDeadlineGivesNativeToAllAndNamesTheMissing) {
  Group group(Strict(0, 4), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 4)));
  ASSERT_OK(group.Join(Strict(1, 4)));
  ASSERT_OK(group.Join(Strict(2, 4)));
  group.ReportReady(100, kSignature);
  group.NoteReadingBegan();
  group.ReportReady(101, kSignature);
  const std::vector<Group::Outcome> outcomes = group.TakeOutcomes(kDeadline);
  ASSERT_THAT(outcomes, SizeIs(2));
  for (const Group::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.decision.effective, SessionPolicy::kNative);
    EXPECT_TRUE(outcome.decision.activated) << "reading had begun";
    EXPECT_EQ(outcome.decision.reason_class, ReasonClass::kGroupIncomplete);
    EXPECT_THAT(outcome.decision.reason,
                AllOf(HasSubstr("rank 2 (pid 1002) opened but not ready"), HasSubstr("rank 3")));
  }
  // Whoever comes later gets the same.
  group.ReportReady(102, kSignature);
  EXPECT_EQ(OnlyDecision(group, kDeadline).effective, SessionPolicy::kNative);
}

TEST(GroupTest, StrictRankThatCannotTakePartGivesNativeToAllAtOnceWithItsReason) {
  Group group(Strict(0, 3), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 3)));
  ASSERT_OK(group.Join(Strict(1, 3)));
  group.ReportReady(100, kSignature);
  group.NoteReadingBegan();
  group.OnRankFailed({.local_rank = 1, .pid = 1001, .why = "one is cut\nanother is damaged"});
  group.Leave(101);
  const SessionDecision decision = OnlyDecision(group);
  EXPECT_EQ(decision.effective, SessionPolicy::kNative);
  EXPECT_EQ(decision.reason_class, ReasonClass::kGroupIncomplete);
  EXPECT_EQ(decision.reason,
            "strict agreement: rank 1 (pid 1001) cannot take part: one is cut; another is damaged");
  EXPECT_FALSE(group.MayReadAhead(100));
  EXPECT_EQ(group.deadline(), std::nullopt);
  // Whoever comes later gets the same, and nothing that fails later changes it.
  group.OnRankFailed({.local_rank = 0, .pid = 1000, .why = "late"});
  ASSERT_OK(group.Join(Strict(2, 3)));
  group.ReportReady(102, kSignature);
  EXPECT_THAT(OnlyDecision(group).reason, HasSubstr("rank 1 (pid 1001)"));
}

TEST(GroupTest, ARankThatFailsConcernsNobodyUnderEagerAgreement) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  group.OnRankFailed({.local_rank = 1, .pid = 1001, .why = "damaged"});
  group.ReportReady(100, kSignature);
  EXPECT_EQ(OnlyDecision(group).effective, SessionPolicy::kRankStripedReadAhead);
}

TEST(GroupTest, ALongReasonIsCut) {
  Group group(Strict(0, 2), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 2)));
  group.ReportReady(100, kSignature);
  group.OnRankFailed(
      {.local_rank = 1, .pid = 1001, .why = std::string(2 * kRankFailureBytesMax, 'x')});
  EXPECT_LT(OnlyDecision(group).reason.size(), kRankFailureBytesMax + 100);
}

TEST(GroupTest, StrictWithTwoCheckpointsGivesNativeToAll) {
  Group group(Strict(0, 2), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 2)));
  ASSERT_OK(group.Join(Strict(1, 2)));
  group.ReportReady(100, kSignature);
  group.ReportReady(101, kOtherSignature);
  const std::vector<Group::Outcome> outcomes = group.TakeOutcomes(kStart);
  ASSERT_THAT(outcomes, SizeIs(2));
  for (const Group::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.decision.effective, SessionPolicy::kNative);
    EXPECT_EQ(outcome.decision.reason_class, ReasonClass::kSignatureMismatch);
    EXPECT_THAT(outcome.decision.reason, HasSubstr("rank 1 (pid 1001)"));
  }
}

TEST(GroupTest, StrictRankThatLeftDoesNotStandForTheGroup) {
  Group group(Strict(0, 2), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 2)));
  ASSERT_OK(group.Join(Strict(1, 2)));
  group.ReportReady(100, kOtherSignature);
  group.Leave(100);
  group.ReportReady(101, kSignature);
  GroupMember again = Strict(0, 2);
  again.session = 200;
  ASSERT_OK(group.Join(again));
  group.ReportReady(200, kSignature);
  const std::vector<Group::Outcome> outcomes = group.TakeOutcomes(kStart);
  ASSERT_THAT(outcomes, SizeIs(2));
  EXPECT_EQ(outcomes[0].decision.effective, SessionPolicy::kRankStripedReadAhead);
}

TEST(GroupTest, WhatDoesNotFitIsNativeForTheWholeGroup) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  EXPECT_EQ(group.NeedsAdmission(), std::nullopt) << "nobody is ready";
  group.ReportReady(100, kSignature);
  EXPECT_EQ(group.NeedsAdmission(), 100u);
  group.SetAdmission("needs more than there is");
  EXPECT_EQ(group.NeedsAdmission(), std::nullopt) << "asked once";
  EXPECT_FALSE(group.MayReadAhead(100));
  const SessionDecision first = OnlyDecision(group);
  EXPECT_EQ(first.effective, SessionPolicy::kNative);
  EXPECT_EQ(first.reason_class, ReasonClass::kNotEnoughMemory);
  EXPECT_EQ(first.reason, "needs more than there is");
  group.Leave(100);
  ASSERT_OK(group.Join(Eager(1, 2, SessionPolicy::kRankStripedReadAhead)));
  group.ReportReady(101, kSignature);
  EXPECT_EQ(group.NeedsAdmission(), std::nullopt);
  EXPECT_EQ(OnlyDecision(group).reason, first.reason);
}

TEST(GroupTest, NobodyAsksForMemoryOfANativeGroup) {
  Group group(Eager(0, 1, SessionPolicy::kNative), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 1, SessionPolicy::kNative)));
  group.ReportReady(100, kSignature);
  EXPECT_EQ(group.NeedsAdmission(), std::nullopt);
}

TEST(GroupTest, StrictAsksAnewForTheCheckpointThatBecomesTheGroups) {
  Group group(Strict(0, 3), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 3)));
  ASSERT_OK(group.Join(Strict(1, 3)));
  group.ReportReady(100, kOtherSignature);
  group.SetAdmission("too big");
  group.ReportReady(101, kSignature);
  group.Leave(100);
  EXPECT_EQ(group.NeedsAdmission(), 101u);
  group.SetAdmission("");
  EXPECT_TRUE(group.MayReadAhead(101));
  EXPECT_THAT(group.Readers(), ::testing::ElementsAre(101u));
}

TEST(GroupTest, RestartedRankGetsTheStoredDecision) {
  Group group(Strict(0, 2), kDeadline);
  ASSERT_OK(group.Join(Strict(0, 2)));
  group.ReportReady(100, kSignature);
  EXPECT_EQ(OnlyDecision(group, kDeadline).effective, SessionPolicy::kNative);
  ASSERT_OK(group.Join(Strict(1, 2)));
  group.Leave(100);
  GroupMember again = Strict(0, 2);
  again.session = 200;
  ASSERT_OK(group.Join(again));
  group.ReportReady(200, kSignature);
  EXPECT_EQ(OnlyDecision(group, kStart).effective, SessionPolicy::kNative);
}

TEST(GroupTest, HeldSeatIsRefusedAndNamesThePid) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  EXPECT_EQ(group.HolderOf(0), 100u);
  EXPECT_EQ(group.HolderOf(1), std::nullopt);
  GroupMember second = Eager(0, 2);
  second.session = 200;
  second.pid = 2000;
  EXPECT_THAT(group.Join(second),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("pid 1000")));
  group.Leave(100);
  EXPECT_TRUE(group.empty());
  EXPECT_OK(group.Join(second));
}

TEST(GroupTest, RefusesWhatContradictsTheGroup) {
  Group group(Eager(0, 2), kDeadline);
  ASSERT_OK(group.Join(Eager(0, 2)));
  EXPECT_THAT(group.Join(Eager(1, 3)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("local size 3"), HasSubstr("rank 0 (pid 1000)"))));
  EXPECT_THAT(group.Join(Strict(1, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("eager")));
}

}  // namespace
}  // namespace forestage
