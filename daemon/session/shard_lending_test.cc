#include "daemon/session/shard_lending.h"

#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kUser = 1000;
constexpr uid_t kOtherUser = 1001;
const absl::Time kStart = absl::UnixEpoch();
const absl::Time kDeadline = kStart + absl::Seconds(4);

LendableFile File(uint64_t inode, uint64_t restrictions = 0) {
  return {.name = {.device = 1, .inode = inode, .handle = ""}, .mount_restrictions = restrictions};
}

// Nothing is read from it: any number does.
SharedFd Descriptor() { return std::make_shared<const UniqueFd>(); }

// What became of one session's question.
struct Asked {
  std::optional<absl::StatusOr<ShardLending::Loans>> answer;

  bool answered() const { return answer.has_value(); }
  // Requires: answered, with loans.
  const ShardLending::Loans& loans() const { return **answer; }
};

class ShardLendingTest : public ::testing::Test {
 protected:
  std::shared_ptr<Asked> Ask(SessionId session, std::vector<std::optional<LendableFile>> files,
                             uid_t uid = kUser) {
    auto asked = std::make_shared<Asked>();
    const auto id = lending_.Ask(session, uid, files.size(), kDeadline,
                                 [asked](absl::StatusOr<ShardLending::Loans> loans) {
                                   EXPECT_FALSE(asked->answered()) << "answered twice";
                                   asked->answer = std::move(loans);
                                 });
    lending_.Show(id, std::move(files));
    return asked;
  }
  SharedFd Offer(SessionId session, const LendableFile& file, uid_t uid = kUser) {
    SharedFd descriptor = Descriptor();
    lending_.Offer(session, uid, {{file, descriptor}});
    return descriptor;
  }
  // Asks for one file and opens it.
  SharedFd OpenFirst(SessionId session, const LendableFile& file, uid_t uid = kUser) {
    const auto asked = Ask(session, {file}, uid);
    EXPECT_TRUE(asked->answered());
    EXPECT_EQ(asked->loans(), ShardLending::Loans(1)) << "nobody had it";
    return Offer(session, file, uid);
  }

  ShardLending lending_;
};

TEST_F(ShardLendingTest, TheFirstOpensAndAllOthersGetItsDescriptor) {
  const SharedFd first = OpenFirst(1, File(7));
  for (SessionId session = 2; session < 9; ++session) {
    const auto asked = Ask(session, {File(7)});
    ASSERT_TRUE(asked->answered());
    EXPECT_EQ(asked->loans(), ShardLending::Loans({first}));
  }
}

TEST_F(ShardLendingTest, WhoeverComesWhileTheFirstOpensWaitsForIt) {
  const auto first = Ask(1, {File(7), File(8)});
  ASSERT_TRUE(first->answered());
  const auto second = Ask(2, {File(7)});
  const auto third = Ask(3, {File(9), File(8)});
  EXPECT_FALSE(second->answered() || third->answered());
  const SharedFd seven = Descriptor();
  const SharedFd eight = Descriptor();
  lending_.Offer(1, kUser, {{File(7), seven}, {File(8), eight}});
  ASSERT_TRUE(second->answered() && third->answered());
  EXPECT_EQ(second->loans(), ShardLending::Loans({seven}));
  EXPECT_EQ(third->loans(), ShardLending::Loans({nullptr, eight}));
  EXPECT_FALSE(Ask(4, {File(9)})->answered()) << "the third opens that one now";
}

TEST_F(ShardLendingTest, WhenTheOpenerEndsOneOfThoseThatWaitOpens) {
  Ask(1, {File(7)});
  const auto second = Ask(2, {File(7)});
  const auto third = Ask(3, {File(7)});
  lending_.Leave(1);
  ASSERT_TRUE(second->answered());
  EXPECT_EQ(second->loans(), ShardLending::Loans(1));
  EXPECT_FALSE(third->answered());
  const SharedFd descriptor = Offer(2, File(7));
  ASSERT_TRUE(third->answered());
  EXPECT_EQ(third->loans(), ShardLending::Loans({descriptor}));
}

TEST_F(ShardLendingTest, OpenerWhoseDescriptorCannotBeLentKeepsNobodyWaiting) {
  Ask(1, {File(7)});
  const auto second = Ask(2, {File(7)});
  EXPECT_FALSE(second->answered());
  lending_.Offer(1, kUser, {});
  ASSERT_TRUE(second->answered());
  EXPECT_EQ(second->loans(), ShardLending::Loans(1));
}

TEST_F(ShardLendingTest, NobodyWaitsBeyondItsDeadline) {
  Ask(1, {File(7)});
  const SharedFd eight = OpenFirst(4, File(8));
  const auto second = Ask(2, {File(7), File(8)});
  EXPECT_EQ(lending_.Expire(kStart), kDeadline);
  EXPECT_FALSE(second->answered());
  EXPECT_EQ(lending_.Expire(kDeadline), absl::InfiniteFuture());
  ASSERT_TRUE(second->answered());
  EXPECT_EQ(second->loans(), ShardLending::Loans({nullptr, eight}));
}

TEST_F(ShardLendingTest, WhoWasNeverLookedAtIsToldToOpenAtTheDeadline) {
  bool answered = false;
  const auto ask = lending_.Ask(1, kUser, 3, kDeadline, [&](auto loans) {
    ASSERT_OK(loans);
    EXPECT_EQ(*loans, ShardLending::Loans(3));
    answered = true;
  });
  lending_.Expire(kDeadline);
  EXPECT_TRUE(answered);
  // Its storage answers at last; that is nobody's business any more.
  lending_.Show(ask, {File(7), File(8), File(9)});
  EXPECT_EQ(OpenFirst(2, File(7)).use_count(), 2);
}

TEST_F(ShardLendingTest, AnotherUserGetsNothing) {
  const SharedFd descriptor = OpenFirst(1, File(7));
  const SharedFd other = OpenFirst(2, File(7), kOtherUser);
  EXPECT_EQ(Ask(3, {File(7)}, kOtherUser)->loans(), ShardLending::Loans({other}));
  EXPECT_EQ(Ask(4, {File(7)})->loans(), ShardLending::Loans({descriptor}));
}

TEST_F(ShardLendingTest, AnotherFileGetsNothing) {
  OpenFirst(1, File(7));
  LendableFile of_another_device = File(7);
  of_another_device.name.device = 2;
  LendableFile with_the_same_number = File(7);
  with_the_same_number.name.handle = "other";
  for (const LendableFile& file : {File(8), of_another_device, with_the_same_number}) {
    EXPECT_EQ(Ask(2, {file})->loans(), ShardLending::Loans(1));
  }
  EXPECT_EQ(Ask(3, {std::nullopt})->loans(), ShardLending::Loans(1)) << "may not borrow";
}

TEST_F(ShardLendingTest, NobodyGetsADescriptorOfAMountThatAllowsMore) {
  const SharedFd descriptor = OpenFirst(1, File(7, 0b01));
  EXPECT_EQ(Ask(2, {File(7, 0b00)})->loans(), ShardLending::Loans({descriptor}));
  EXPECT_EQ(Ask(3, {File(7, 0b01)})->loans(), ShardLending::Loans({descriptor}));
  EXPECT_EQ(Ask(4, {File(7, 0b11)})->loans(), ShardLending::Loans(1));
}

TEST_F(ShardLendingTest, ADescriptorLivesAsLongAsASessionThatHasIt) {
  std::weak_ptr<const UniqueFd> descriptor = OpenFirst(1, File(7));
  EXPECT_EQ(Ask(2, {File(7)})->loans().at(0), descriptor.lock());
  lending_.Leave(1);
  EXPECT_FALSE(descriptor.expired());
  EXPECT_EQ(Ask(3, {File(7)})->loans().at(0), descriptor.lock());
  lending_.Leave(2);
  lending_.Leave(3);
  EXPECT_TRUE(descriptor.expired());
  OpenFirst(4, File(7));
}

TEST_F(ShardLendingTest, EndedSessionsAreAnswered) {
  Ask(1, {File(7)});
  const auto second = Ask(2, {File(7)});
  lending_.Leave(2);
  ASSERT_TRUE(second->answered());
  EXPECT_THAT(second->answer->status(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("ended")));
}

// Sessions of two users that come, ask, open and end in any order: each question is answered once,
// nobody gets what is not of his user and of that file, and while nothing times out no file that is
// held is opened again.
TEST_F(ShardLendingTest, AnyOrderOfEvents) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](uint64_t count) { return random() % count; };
  constexpr uint64_t kFiles = 3;
  struct Rank {
    uint64_t inode = 0;
    std::shared_ptr<Asked> asked;
    bool offered = false;
  };
  std::map<SessionId, Rank> ranks;
  std::map<const UniqueFd*, std::pair<uid_t, uint64_t>> made;
  std::map<std::pair<uid_t, uint64_t>, std::weak_ptr<const UniqueFd>> held;
  const auto user_of = [](SessionId id) { return id % 2 == 0 ? kUser : kOtherUser; };
  for (SessionId next = 1; next < 3000;) {
    const uint64_t choice = below(4);
    if (choice == 0 || ranks.empty()) {
      const uint64_t inode = below(kFiles);
      ranks[next] = {.inode = inode, .asked = Ask(next, {File(inode)}, user_of(next))};
      ++next;
      continue;
    }
    const auto entry = std::next(ranks.begin(), static_cast<long>(below(ranks.size())));
    auto& [id, rank] = *entry;
    const std::pair<uid_t, uint64_t> key(user_of(id), rank.inode);
    if (choice == 1) {
      const bool answered = rank.asked->answered();
      lending_.Leave(id);
      ASSERT_TRUE(answered || !rank.asked->answer->ok());
      ranks.erase(entry);
    } else if (rank.asked->answered() && !rank.offered) {
      rank.offered = true;
      const SharedFd lent = rank.asked->loans().at(0);
      if (lent == nullptr) {
        ASSERT_TRUE(held[key].expired()) << "opened although somebody has it";
        const SharedFd descriptor = Descriptor();
        made[descriptor.get()] = key;
        held[key] = descriptor;
        lending_.Offer(id, user_of(id), {{File(rank.inode), descriptor}});
      } else {
        ASSERT_EQ(made.at(lent.get()), key);
        lending_.Offer(id, user_of(id), {});
      }
      rank.asked->answer = ShardLending::Loans(1);  // gives back the test's own reference
    }
  }
  while (!ranks.empty()) {
    lending_.Leave(ranks.begin()->first);
    EXPECT_TRUE(ranks.begin()->second.asked->answered());
    ranks.erase(ranks.begin());
  }
  EXPECT_EQ(lending_.Expire(kDeadline), absl::InfiniteFuture());
  for (const auto& [key, descriptor] : held) EXPECT_TRUE(descriptor.expired());
}

}  // namespace
}  // namespace forestage
