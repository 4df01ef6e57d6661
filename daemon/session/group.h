// The decision of one group: the local ranks that load one checkpoint together.
//
// Pure logic: no clock, no threads, no files. SessionRegistry owns groups and calls them under its
// lock. docs/semantics.md lists what is promised; group_model_test.cc checks it over random
// interleavings.
//
//   undecided --first rank joins (eager)------------------> decided
//   undecided --all ranks ready, or the deadline (strict)-> decided      (never leaves it)
//   undecided --a rank cannot take part (strict)----------> decided
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "checkpoint/catalog.h"
#include "daemon/session/session_decision.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// One rank that wants to join.
struct GroupMember {
  SessionId session = 0;
  uint32_t local_rank = 0;
  uint32_t local_size = 0;
  SessionPolicy policy = SessionPolicy::kAuto;
  SessionAgreement agreement = SessionAgreement::kEager;
  // Named in reasons.
  int64_t pid = 0;
};

// A rank that loads by itself, whatever its group is told.
struct RankFailure {
  uint32_t local_rank = 0;
  int64_t pid = 0;
  std::string why;
};

// Not thread-safe.
class Group {
 public:
  // What one session is to be told.
  struct Outcome {
    SessionId session = 0;
    SessionDecision decision;
  };

  // A group as its first member founds it: local size, agreement and (strict) the deadline are the
  // first member's. The founder has not joined yet.
  Group(const GroupMember& founder, absl::Time deadline);

  // Takes a seat. Errors:
  //   INVALID_ARGUMENT  local size or agreement differ from the group's
  //   ALREADY_EXISTS    the seat is taken; the message names the pid that holds it
  absl::Status Join(const GroupMember& member);
  // The session that holds this rank's seat.
  std::optional<SessionId> HolderOf(uint32_t local_rank) const;

  // The member's headers are sound and its checkpoint has this signature.
  // Requires: the session has joined; once a session.
  void ReportReady(SessionId session, const CheckpointSignature& signature);
  // Strict and undecided: decides native, with this rank's reason, since nobody can wait for it.
  // Otherwise nothing.
  void OnRankFailed(const RankFailure& failure);
  // Frees the seat. A session that has not joined is ignored.
  void Leave(SessionId session);

  // Outcomes that are due and were not taken yet: at most one a session, only for sessions that
  // have reported ready.
  std::vector<Outcome> TakeOutcomes(absl::Time now);

  // Whose checkpoint is to be compared with the node's memory before anybody is told or read for:
  // a ready rank with the group's signature. nullopt: the answer is here, or nobody would read.
  std::optional<SessionId> NeedsAdmission() const;
  // The answer, for the whole group and its life. Empty: it fits. Requires: NeedsAdmission().
  void SetAdmission(std::string refusal);

  // May the daemon read ahead for this session, as far as is known now? Requires: it is ready.
  bool MayReadAhead(SessionId session) const;
  // The ready sessions of which that is true, by local rank.
  std::vector<SessionId> Readers() const;
  // Reading ahead was begun for a member; `activated` in later outcomes.
  void NoteReadingBegan() { reading_began_ = true; }

  // Strict and undecided: when the decision is due at the latest.
  std::optional<absl::Time> deadline() const;
  bool empty() const { return members_.empty(); }
  uint32_t local_size() const { return local_size_; }
  SessionAgreement agreement() const { return agreement_; }

 private:
  struct Member {
    GroupMember terms;
    std::optional<CheckpointSignature> signature;
    // Position among the ranks that became ready.
    uint64_t ready_order = 0;
    bool told = false;
  };
  // Decided once. The policy and why; for a rank-striped decision, ranks that see another
  // checkpoint get native all the same.
  struct Verdict {
    SessionPolicy policy = SessionPolicy::kNative;
    ReasonClass reason_class = ReasonClass::kRequested;
    std::string reason;
  };

  const Member* FindMember(SessionId session) const;
  bool MayReadAhead(const Member& member) const;
  void DecideByFounder();
  // Strict: decides when it is time.
  void MaybeDecide(absl::Time now);
  Verdict Complete() const;
  Verdict Incomplete() const;
  SessionDecision DecisionFor(const Member& member) const;

  // Constant after construction.
  const uint32_t local_size_;
  const SessionAgreement agreement_;
  const absl::Time deadline_;
  const GroupMember founder_;

  std::map<uint32_t, Member> members_;  // by local rank
  uint64_t ready_count_ = 0;            // ever
  std::optional<Verdict> verdict_;
  // The signature that the group has: the first ready rank's. Under strict it can change until the
  // verdict, when that rank leaves.
  std::optional<CheckpointSignature> signature_;
  uint32_t signature_rank_ = 0;
  // Whether memory holds the checkpoint of signature_: unknown, "" or why not.
  std::optional<std::string> refusal_;
  bool reading_began_ = false;
};

}  // namespace forestage
