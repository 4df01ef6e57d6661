#include "daemon/session/group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/check.h"
#include "common/error_list.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

std::string DescribeRank(uint32_t local_rank, int64_t pid) {
  return absl::StrCat("rank ", local_rank, " (pid ", pid, ")");
}

// Lists of damaged shards have a line for each, and may be long.
std::string ShortLine(absl::string_view text) {
  std::string line = OneLine(text);
  if (line.size() > kRankFailureBytesMax) {
    line.resize(kRankFailureBytesMax);
    absl::StrAppend(&line, "...");
  }
  return line;
}

SessionPolicy Resolve(SessionPolicy requested) {
  return requested == SessionPolicy::kNative ? SessionPolicy::kNative
                                             : SessionPolicy::kRankStripedReadAhead;
}

}  // namespace

Group::Group(const GroupMember& founder, absl::Time deadline)
    : local_size_(founder.local_size),
      agreement_(founder.agreement),
      deadline_(deadline),
      founder_(founder) {
  CHECK(local_size_ > 0);
  if (agreement_ == SessionAgreement::kEager) DecideByFounder();
}

absl::Status Group::Join(const GroupMember& member) {
  CHECK(member.local_rank < member.local_size);
  if (member.local_size != local_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeRank(member.local_rank, member.pid), " says local size ",
                     member.local_size, ", but ", DescribeRank(founder_.local_rank, founder_.pid),
                     " opened this group with local size ", local_size_));
  }
  if (member.agreement != agreement_) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeRank(member.local_rank, member.pid), " asks for ",
                     SessionAgreementName(member.agreement), " agreement, but ",
                     DescribeRank(founder_.local_rank, founder_.pid), " opened this group with ",
                     SessionAgreementName(agreement_), " agreement"));
  }
  const auto [entry, inserted] = members_.try_emplace(member.local_rank);
  if (!inserted) {
    return absl::AlreadyExistsError(absl::StrCat(
        "local rank ", member.local_rank, " of this group is held by pid ", entry->second.terms.pid,
        ", which is alive; is another copy of this job running?"));
  }
  entry->second.terms = member;
  return absl::OkStatus();
}

std::optional<SessionId> Group::HolderOf(uint32_t local_rank) const {
  const auto found = members_.find(local_rank);
  if (found == members_.end()) return std::nullopt;
  return found->second.terms.session;
}

const Group::Member* Group::FindMember(SessionId session) const {
  for (const auto& [rank, member] : members_) {
    if (member.terms.session == session) return &member;
  }
  return nullptr;
}

void Group::ReportReady(SessionId session, const CheckpointSignature& signature) {
  for (auto& [rank, member] : members_) {
    if (member.terms.session != session) continue;
    CHECK(!member.signature.has_value());
    member.signature = signature;
    member.ready_order = ready_count_++;
    if (!signature_.has_value()) {
      signature_ = signature;
      signature_rank_ = rank;
    }
    return;
  }
  CHECK(false);
}

void Group::OnRankFailed(const RankFailure& failure) {
  if (verdict_.has_value()) return;
  verdict_ = Verdict{
      .policy = SessionPolicy::kNative,
      .reason_class = ReasonClass::kGroupIncomplete,
      .reason = absl::StrCat("strict agreement: ", DescribeRank(failure.local_rank, failure.pid),
                             " cannot take part: ", ShortLine(failure.why))};
}

void Group::Leave(SessionId session) {
  for (auto entry = members_.begin(); entry != members_.end(); ++entry) {
    if (entry->second.terms.session != session) continue;
    members_.erase(entry);
    break;
  }
  // Nothing was told to anybody yet, so a rank that left must not stand for the group.
  if (verdict_.has_value()) return;
  const Member* earliest = nullptr;
  for (const auto& [rank, member] : members_) {
    if (!member.signature.has_value()) continue;
    if (earliest == nullptr || member.ready_order < earliest->ready_order) earliest = &member;
  }
  const std::optional<CheckpointSignature> before = std::exchange(signature_, std::nullopt);
  if (earliest != nullptr) {
    signature_ = earliest->signature;
    signature_rank_ = earliest->terms.local_rank;
  }
  if (signature_ != before) refusal_.reset();
}

std::optional<SessionId> Group::NeedsAdmission() const {
  if (refusal_.has_value()) return std::nullopt;
  const std::vector<SessionId> readers = Readers();
  if (readers.empty()) return std::nullopt;
  return readers.front();
}

void Group::SetAdmission(std::string refusal) {
  CHECK(!refusal_.has_value());
  refusal_ = std::move(refusal);
}

void Group::DecideByFounder() {
  Verdict verdict;
  verdict.policy = Resolve(founder_.policy);
  verdict_ = std::move(verdict);
}

void Group::MaybeDecide(absl::Time now) {
  if (verdict_.has_value()) return;
  size_t ready = 0;
  for (const auto& [rank, member] : members_) ready += member.signature.has_value() ? 1 : 0;
  if (ready == local_size_) {
    verdict_ = Complete();
  } else if (now >= deadline_) {
    verdict_ = Incomplete();
  }
}

Group::Verdict Group::Complete() const {
  Verdict verdict;
  verdict.policy = Resolve(founder_.policy);
  std::vector<std::string> others;
  for (const auto& [rank, member] : members_) {
    if (member.signature != signature_) others.push_back(DescribeRank(rank, member.terms.pid));
  }
  if (!others.empty()) {
    verdict.policy = SessionPolicy::kNative;
    verdict.reason_class = ReasonClass::kSignatureMismatch;
    verdict.reason =
        absl::StrCat(absl::StrJoin(others, ", "), " sees another checkpoint than rank ",
                     signature_rank_, " (names, sizes, times or headers of the shards differ)");
  } else if (verdict.policy == SessionPolicy::kRankStripedReadAhead && refusal_.has_value() &&
             !refusal_->empty()) {
    verdict.policy = SessionPolicy::kNative;
    verdict.reason_class = ReasonClass::kNotEnoughMemory;
    verdict.reason = *refusal_;
  }
  return verdict;
}

Group::Verdict Group::Incomplete() const {
  std::vector<std::string> missing;
  for (uint32_t rank = 0; rank < local_size_; ++rank) {
    const auto found = members_.find(rank);
    if (found == members_.end()) {
      missing.push_back(absl::StrCat("rank ", rank));
    } else if (!found->second.signature.has_value()) {
      missing.push_back(
          absl::StrCat(DescribeRank(rank, found->second.terms.pid), " opened but not ready"));
    }
  }
  return {.policy = SessionPolicy::kNative,
          .reason_class = ReasonClass::kGroupIncomplete,
          .reason = absl::StrCat("strict agreement: missing at the deadline: ",
                                 absl::StrJoin(missing, ", "))};
}

std::vector<Group::Outcome> Group::TakeOutcomes(absl::Time now) {
  MaybeDecide(now);
  std::vector<Outcome> outcomes;
  if (!verdict_.has_value()) return outcomes;
  for (auto& [rank, member] : members_) {
    if (member.told || !member.signature.has_value()) continue;
    member.told = true;
    outcomes.push_back({.session = member.terms.session, .decision = DecisionFor(member)});
  }
  return outcomes;
}

SessionDecision Group::DecisionFor(const Member& member) const {
  SessionDecision decision;
  decision.requested = member.terms.policy;
  decision.effective = verdict_->policy;
  decision.activated = reading_began_;
  if (!verdict_->reason.empty()) {
    decision.reason_class = verdict_->reason_class;
    decision.reason = verdict_->reason;
    // What was read was the checkpoint of a rank that has left.
    if (decision.reason_class == ReasonClass::kNotEnoughMemory) decision.activated = false;
    return decision;
  }
  if (verdict_->policy == SessionPolicy::kRankStripedReadAhead && member.signature != signature_) {
    decision.effective = SessionPolicy::kNative;
    decision.activated = false;
    decision.reason_class = ReasonClass::kSignatureMismatch;
    decision.reason =
        absl::StrCat("this rank sees another checkpoint than the group's, which is that of rank ",
                     signature_rank_, " (names, sizes, times or headers of the shards differ)");
    return decision;
  }
  if (verdict_->policy == SessionPolicy::kRankStripedReadAhead && refusal_.has_value() &&
      !refusal_->empty()) {
    decision.effective = SessionPolicy::kNative;
    decision.activated = false;
    decision.reason_class = ReasonClass::kNotEnoughMemory;
    decision.reason = *refusal_;
    return decision;
  }
  const std::string decider = DescribeRank(founder_.local_rank, founder_.pid);
  if (decision.requested == decision.effective) {
    decision.reason_class = ReasonClass::kRequested;
    decision.reason = "as requested";
  } else if (decision.effective == SessionPolicy::kNative) {
    decision.reason_class = ReasonClass::kNativeInGroup;
    decision.reason = absl::StrCat("native for this group: requested by ", decider);
  } else if (decision.requested == SessionPolicy::kAuto) {
    decision.reason_class = ReasonClass::kChosenByDaemon;
    decision.reason = "auto: the daemon reads every demanded byte once for this node";
  } else {
    decision.reason_class = ReasonClass::kDecidedByGroup;
    decision.reason = absl::StrCat(SessionPolicyName(decision.effective),
                                   " for this group: decided by ", decider);
  }
  return decision;
}

bool Group::MayReadAhead(SessionId session) const {
  const Member* member = FindMember(session);
  CHECK(member != nullptr && member->signature.has_value());
  return MayReadAhead(*member);
}

bool Group::MayReadAhead(const Member& member) const {
  if (!member.signature.has_value() || member.signature != signature_) return false;
  if (refusal_.has_value() && !refusal_->empty()) return false;
  const SessionPolicy policy = verdict_.has_value() ? verdict_->policy : Resolve(founder_.policy);
  return policy == SessionPolicy::kRankStripedReadAhead;
}

std::vector<SessionId> Group::Readers() const {
  std::vector<SessionId> readers;
  for (const auto& [rank, member] : members_) {
    if (MayReadAhead(member)) readers.push_back(member.terms.session);
  }
  return readers;
}

std::optional<absl::Time> Group::deadline() const {
  if (verdict_.has_value()) return std::nullopt;
  return deadline_;
}

}  // namespace forestage
