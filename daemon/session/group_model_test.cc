// The group's decision over random interleavings of joins, readiness, deaths, restarts and time.
// What holds in all of them stands in docs/semantics.md. FORESTAGE_SEED=N repeats one run.
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "daemon/session/group.h"

namespace forestage {
namespace {

constexpr int kRunsMax = 4000;
constexpr int kStepsMax = 60;

struct ModelMember {
  GroupMember terms;
  std::optional<CheckpointSignature> signature;
  std::optional<SessionDecision> decision;
};

// Plays one random life of a group and checks every step.
class GroupPlay {
 public:
  explicit GroupPlay(uint64_t seed)
      : random_(seed),
        size_(1 + Below(5)),
        agreement_(Below(2) == 0 ? SessionAgreement::kEager : SessionAgreement::kStrict),
        founder_(NewMember(static_cast<uint32_t>(Below(size_)))),
        deadline_(absl::UnixEpoch() + absl::Seconds(1 + Below(40))),
        group_(founder_, deadline_) {
    EXPECT_OK(group_.Join(founder_));
    members_[founder_.local_rank] = {.terms = founder_, .signature = {}, .decision = {}};
  }

  void Play() {
    const size_t steps = 1 + Below(kStepsMax);
    for (size_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      Step();
      Take();
    }
    // Time passes: nobody who is ready waits for ever.
    now_ = deadline_;
    Take();
    for (const auto& [rank, member] : members_) {
      EXPECT_EQ(member.decision.has_value(), member.signature.has_value()) << "rank " << rank;
    }
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  GroupMember NewMember(uint32_t rank) {
    const SessionPolicy policies[] = {SessionPolicy::kAuto, SessionPolicy::kAuto,
                                      SessionPolicy::kRankStripedReadAhead, SessionPolicy::kNative};
    return {.session = next_session_++,
            .local_rank = rank,
            .local_size = static_cast<uint32_t>(size_),
            .policy = policies[Below(4)],
            .agreement = agreement_,
            .pid = static_cast<int64_t>(1000 + next_session_)};
  }

  void Step() {
    const auto rank = static_cast<uint32_t>(Below(size_));
    const auto found = members_.find(rank);
    switch (Below(6)) {
      case 0:
      case 1:
      case 2:
        if (found == members_.end()) {
          Join(rank);
        } else if (!found->second.signature.has_value()) {
          BecomeReady(found->second);
        }
        break;
      case 3:
        if (found != members_.end()) {
          EXPECT_EQ(group_.Join(NewMember(rank)).code(), absl::StatusCode::kAlreadyExists);
        }
        break;
      case 4:
        if (found != members_.end() && Below(3) == 0) {
          // Whoever leaves before it is ready has failed, but for one that is replaced.
          if (!found->second.signature.has_value() && Below(2) == 0) {
            group_.OnRankFailed({.local_rank = rank, .pid = 1, .why = "it\nfailed"});
            failed_ = true;
          }
          group_.Leave(found->second.terms.session);
          members_.erase(found);
          AnswerAdmission();
          EXPECT_EQ(group_.empty(), members_.empty());
        }
        break;
      default:
        now_ += absl::Milliseconds(Below(3000));
        break;
    }
  }

  void Join(uint32_t rank) {
    const GroupMember member = NewMember(rank);
    ASSERT_OK(group_.Join(member));
    members_[rank] = {.terms = member, .signature = {}, .decision = {}};
  }

  void BecomeReady(ModelMember& member) {
    member.signature = CheckpointSignature{static_cast<uint8_t>(Below(8) == 0 ? 2 : 1)};
    group_.ReportReady(member.terms.session, *member.signature);
    AnswerAdmission();
    if (group_.MayReadAhead(member.terms.session)) group_.NoteReadingBegan();
  }

  // As the registry does: whoever asks is answered before anybody is told.
  void AnswerAdmission() {
    const std::optional<SessionId> asker = group_.NeedsAdmission();
    if (!asker.has_value()) return;
    EXPECT_TRUE(group_.MayReadAhead(*asker));
    const bool fits = Below(3) != 0;
    group_.SetAdmission(fits ? "" : "too big");
    EXPECT_EQ(group_.NeedsAdmission(), std::nullopt);
    EXPECT_EQ(group_.MayReadAhead(*asker), fits);
    EXPECT_EQ(group_.Readers().empty(), !fits);
  }

  bool AllReady() const {
    if (members_.size() != size_) return false;
    for (const auto& [rank, member] : members_) {
      if (!member.signature.has_value()) return false;
    }
    return true;
  }

  void Take() {
    const bool all_ready = AllReady();
    const std::vector<Group::Outcome> outcomes = group_.TakeOutcomes(now_);
    std::set<SessionPolicy> given;
    std::set<CheckpointSignature> seen;
    for (const Group::Outcome& outcome : outcomes) {
      ModelMember* member = nullptr;
      for (auto& [rank, candidate] : members_) {
        if (candidate.terms.session == outcome.session) member = &candidate;
      }
      ASSERT_NE(member, nullptr) << "a session that is gone was answered";
      ASSERT_TRUE(member->signature.has_value());
      ASSERT_FALSE(member->decision.has_value()) << "answered twice";
      member->decision = outcome.decision;
      CheckDecision(*member);
      given.insert(outcome.decision.effective);
      seen.insert(*member->signature);
    }
    if (agreement_ == SessionAgreement::kEager) {
      CheckEveryReadyRankIsTold();
    } else if (!strict_told_) {
      // All or nothing: the same to all who are there, and not before it was time.
      if (outcomes.empty()) {
        EXPECT_FALSE(all_ready || ((now_ >= deadline_ || failed_) && AnyReady()));
        return;
      }
      strict_told_ = true;
      EXPECT_TRUE(all_ready || now_ >= deadline_ || failed_);
      EXPECT_EQ(given.size(), 1u);
      if (seen.size() > 1 || failed_) {
        EXPECT_EQ(*given.begin(), SessionPolicy::kNative);
      }
      CheckEveryReadyRankIsTold();
    } else {
      CheckEveryReadyRankIsTold();
    }
  }

  bool AnyReady() const {
    for (const auto& [rank, member] : members_) {
      if (member.signature.has_value()) return true;
    }
    return false;
  }

  void CheckEveryReadyRankIsTold() const {
    for (const auto& [rank, member] : members_) {
      EXPECT_EQ(member.decision.has_value(), member.signature.has_value()) << "rank " << rank;
    }
  }

  void CheckDecision(const ModelMember& member) {
    const SessionDecision& decision = *member.decision;
    EXPECT_EQ(decision.requested, member.terms.policy);
    EXPECT_NE(decision.effective, SessionPolicy::kAuto);
    EXPECT_FALSE(decision.reason.empty());
    EXPECT_EQ(decision.reason.find('\n'), std::string::npos);
    if (decision.reason_class == ReasonClass::kNotEnoughMemory) {
      EXPECT_EQ(decision.effective, SessionPolicy::kNative);
      EXPECT_EQ(decision.reason, "too big");
      EXPECT_FALSE(decision.activated);
    }
    if (decision.effective == SessionPolicy::kRankStripedReadAhead) {
      EXPECT_NE(founder_.policy, SessionPolicy::kNative);
      // One checkpoint for all who read together, for the life of the group.
      if (striped_signature_.has_value()) {
        EXPECT_EQ(*striped_signature_, *member.signature);
      }
      striped_signature_ = member.signature;
    }
    // One decision a group: a rank's own exception is a checkpoint that is not the group's.
    const bool own_exception = decision.effective == SessionPolicy::kNative &&
                               decision.reason_class == ReasonClass::kSignatureMismatch &&
                               !decision.activated;
    if (own_exception) return;
    if (group_policy_.has_value()) {
      EXPECT_EQ(*group_policy_, decision.effective);
    }
    group_policy_ = decision.effective;
  }

  std::mt19937_64 random_;
  SessionId next_session_ = 1;
  const uint64_t size_;
  const SessionAgreement agreement_;
  const GroupMember founder_;
  const absl::Time deadline_;
  Group group_;
  absl::Time now_ = absl::UnixEpoch();
  std::map<uint32_t, ModelMember> members_;
  bool strict_told_ = false;
  // Before the decision, or after it.
  bool failed_ = false;
  std::optional<CheckpointSignature> striped_signature_;
  std::optional<SessionPolicy> group_policy_;
};

TEST(GroupModelTest, PromisesHoldInRandomInterleavings) {
  const char* const fixed = std::getenv("FORESTAGE_SEED");
  const uint64_t first =
      fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : std::random_device()();
  const int runs = fixed != nullptr ? 1 : kRunsMax;
  for (int i = 0; i < runs; ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    SCOPED_TRACE("FORESTAGE_SEED=" + std::to_string(seed));
    GroupPlay(seed).Play();
    if (HasFailure()) {
      ADD_FAILURE() << "repeat with FORESTAGE_SEED=" << seed;
      return;
    }
  }
}

}  // namespace
}  // namespace forestage
