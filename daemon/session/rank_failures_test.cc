#include "daemon/session/rank_failures.h"

#include "absl/strings/str_cat.h"

#include "common/status_matchers.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

const absl::Time kStart = absl::UnixEpoch();
const RankFailures::GroupKey kGroup = {"group", "nonce", "/path"};

GroupMember Rank(uint32_t local_rank, uint32_t local_size = 4) {
  return {.session = 1, .local_rank = local_rank, .local_size = local_size};
}

RankFailure FailureOf(uint32_t local_rank, std::string why = "damaged") {
  return {.local_rank = local_rank, .pid = 7, .why = std::move(why)};
}

TEST(RankFailuresTest, TellsOtherRanksOfTheGroupForAWhile) {
  RankFailures failures;
  failures.Add(kGroup, 4, FailureOf(1), kStart);
  for (const uint32_t rank : {0, 2, 3}) {
    const std::optional<RankFailure> failure = failures.TakeFor(kGroup, Rank(rank), kStart);
    ASSERT_TRUE(failure.has_value()) << rank;
    EXPECT_EQ(failure->local_rank, 1u);
    EXPECT_EQ(failure->why, "damaged");
  }
  EXPECT_FALSE(failures.TakeFor(kGroup, Rank(0), kStart + kRankFailureKept).has_value());
}

TEST(RankFailuresTest, SaysNothingOfOtherGroups) {
  RankFailures failures;
  failures.Add(kGroup, 4, FailureOf(1), kStart);
  EXPECT_FALSE(failures.TakeFor({"group", "other", "/path"}, Rank(0), kStart).has_value());
  EXPECT_FALSE(failures.TakeFor({"group", "nonce", "/other"}, Rank(0), kStart).has_value());
  EXPECT_FALSE(failures.TakeFor(kGroup, Rank(0, 2), kStart).has_value());
}

TEST(RankFailuresTest, ARankThatTriesAgainBeginsAnew) {
  RankFailures failures;
  failures.Add(kGroup, 4, FailureOf(1), kStart);
  EXPECT_FALSE(failures.TakeFor(kGroup, Rank(1), kStart).has_value());
  EXPECT_FALSE(failures.TakeFor(kGroup, Rank(0), kStart).has_value());
}

TEST(RankFailuresTest, KeepsOneAGroupAndNotMoreThanItsBound) {
  RankFailures failures;
  failures.Add(kGroup, 4, FailureOf(1), kStart);
  failures.Add(kGroup, 4, FailureOf(2, std::string(2 * kRankFailureBytesMax, 'x')), kStart);
  EXPECT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures.TakeFor(kGroup, Rank(1), kStart)->why.size(), kRankFailureBytesMax);
  for (size_t i = 0; i < 2 * kRankFailuresMax; ++i) {
    failures.Add({absl::StrCat(i), "", "/path"}, 4, FailureOf(1), kStart);
  }
  EXPECT_EQ(failures.size(), kRankFailuresMax);
  EXPECT_FALSE(failures.TakeFor(kGroup, Rank(0), kStart).has_value()) << "the oldest goes first";
  failures.Add(kGroup, 4, FailureOf(1), kStart + kRankFailureKept);
  EXPECT_EQ(failures.size(), 1u) << "what is too old goes";
}

}  // namespace
}  // namespace forestage
