// The invariants of DaemonModel; docs/semantics.md lists them.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "common/board_protocol.h"
#include "common/check.h"
#include "tests/model/daemon_model.h"

namespace forestage {
namespace {

std::string NameOf(const ModelRank& rank) { return absl::StrCat("rank ", rank.number); }

// No run takes longer to become quiet, unless something goes round.
constexpr int kQuietRoundsMax = 10'000;

}  // namespace

void DaemonModel::CheckAll() {
  CheckSessions();
  CheckGroups();
  CheckMemory();
  CheckDemands();
  CheckBoards();
  CheckWaits();
}

const ModelCheckpoint* DaemonModel::AliveOf(ModelStorage::Epoch epoch) const {
  if (store_ == nullptr) return nullptr;
  for (const ModelCheckpoint* checkpoint : store_->alive()) {
    if (checkpoint->epoch() == epoch) return checkpoint;
  }
  return nullptr;
}

// Of a living session; null until it is ready.
const ModelCheckpoint* DaemonModel::CheckpointOf(const ModelRank& rank) const {
  for (const SessionSnapshot& session : registry_->Snapshot()) {
    if (session.id != rank.id) continue;
    for (const ModelCheckpoint* checkpoint : store_->alive()) {
      if (checkpoint == session.checkpoint) return checkpoint;
    }
  }
  return nullptr;
}

// A seat has one holder, a token one living session and one process, and the daemon knows the
// sessions that it told to be open, and no others.
void DaemonModel::CheckSessions() {
  std::set<SessionId> known;
  for (const SessionSnapshot& session : registry_->Snapshot()) {
    known.insert(session.id);
  }
  for (const auto& [key, group] : groups_) {
    std::set<uint32_t> taken;
    for (const ModelRank* member : group->members) {
      Expect(taken.insert(member->terms.local_rank).second, "a seat has two holders in " + key);
    }
  }
  size_t living = 0;
  for (const ModelRank& rank : ranks_) {
    if (!rank.token.has_value()) continue;
    const absl::StatusOr<SessionId> found = registry_->FindByToken(*rank.token, rank.process->peer);
    if (rank.lives()) {
      ++living;
      Expect(known.contains(rank.id), NameOf(rank) + " is open, and the daemon does not know it");
      Expect(found.ok() && *found == rank.id, NameOf(rank) + "'s token is not its session's");
    } else {
      Expect(!found.ok(), NameOf(rank) + "'s token outlives its session");
    }
    const ModelProcess& other = processes_.front();
    if (&other != rank.process) {
      Expect(!registry_->FindByToken(*rank.token, other.peer).ok(),
             NameOf(rank) + "'s token serves another process");
    }
  }
  Expect(living == known.size(), "the daemon has a session that nobody opened");
}

// One decision a group, and everybody is told.
void DaemonModel::CheckGroups() {
  for (const auto& [key, group] : groups_) {
    const bool all_ready =
        group->members.size() == group->local_size &&
        absl::c_all_of(group->members, [](const ModelRank* one) { return one->ready.has_value(); });
    CheckReadingBeginsWithTheFirst(key, *group);
    for (const ModelRank* member : group->members) {
      const bool told = member->decision.has_value();
      if (group->agreement == SessionAgreement::kEager) {
        Expect(told == member->ready.has_value(),
               NameOf(*member) + " is ready under eager agreement, and not told");
      } else if (group->decided || group->failed) {
        Expect(told == member->ready.has_value(),
               NameOf(*member) + " is not told what its strict group was told");
      } else {
        Expect(!told && !all_ready, "a strict group is complete, and nobody is told: " + key);
      }
    }
  }
}

// Under strict agreement, too, reading does not wait for the decision, whoever came first and left.
void DaemonModel::CheckReadingBeginsWithTheFirst(const std::string& key, const ModelGroup& group) {
  if (group.decided || group.failed || group.first_wish == SessionPolicy::kNative ||
      !memory_was_plenty_ || registry_->draining()) {
    return;
  }
  bool any_ready = false;
  for (const ModelRank* member : group.members) {
    if (!member->ready.has_value()) continue;
    any_ready = true;
    const ModelCheckpoint* const checkpoint = CheckpointOf(*member);
    const bool read_for = checkpoint != nullptr && checkpoint->WantsEverything(member->id);
    if (read_for || member->terms.demand_follows) return;
  }
  Expect(!any_ready, "nothing is read for ready ranks of " + key);
}

void DaemonModel::CheckDecision(const ModelRank& rank, const SessionDecision& decision) {
  Expect(decision.requested == rank.terms.policy, "a decision about another wish");
  Expect(decision.effective != SessionPolicy::kAuto, "a decision that decides nothing");
  Expect(!decision.reason.empty() && decision.reason.find('\n') == std::string::npos,
         "a reason that is not a line");
  ModelGroup& group = *rank.group;
  const bool all_ready =
      group.members.size() == group.local_size &&
      absl::c_all_of(group.members, [](const ModelRank* one) { return one->ready.has_value(); });
  if (group.agreement == SessionAgreement::kStrict && !group.decided) {
    // A rank that is refused has failed; the model is told of it later.
    group.failed = group.failed || opening_;
    decided_while_opening_ = decided_while_opening_ || opening_;
    Expect(all_ready || now_ >= group.deadline || group.failed,
           "a strict group is told before it is complete");
    Expect(!group.failed || decision.effective == SessionPolicy::kNative,
           "a strict group is to read together without one that failed");
  }
  group.decided = true;
  if (decision.effective == SessionPolicy::kRankStripedReadAhead) {
    const CheckpointSignature signature = rank.ready->signature;
    if (!group.striped_signature.has_value()) group.striped_signature = signature;
    Expect(*group.striped_signature == signature,
           "ranks with different checkpoints are to read together");
  }
  // The only exception that a rank has for itself: a checkpoint that is not the group's.
  if (decision.effective == SessionPolicy::kNative &&
      decision.reason_class == ReasonClass::kSignatureMismatch && !decision.activated) {
    return;
  }
  if (!group.policy.has_value()) group.policy = decision.effective;
  Expect(*group.policy == decision.effective, "a group has two decisions");
}

// Leased is what living sessions are read for, no less and no more.
void DaemonModel::CheckMemory() {
  std::set<const ModelCheckpoint*> surely;
  std::set<const ModelCheckpoint*> perhaps;
  for (const ModelRank& rank : ranks_) {
    if (!rank.lives() || !rank.ready.has_value()) continue;
    const ModelCheckpoint* const checkpoint = CheckpointOf(rank);
    if (checkpoint == nullptr) {
      Violate(NameOf(rank) + " is ready, and its checkpoint is gone");
      return;
    }
    if (rank.decision.has_value() && rank.decision->effective == SessionPolicy::kNative) continue;
    perhaps.insert(checkpoint);
    if (rank.decision.has_value()) surely.insert(checkpoint);
  }
  const auto sum = [](const std::set<const ModelCheckpoint*>& checkpoints) {
    uint64_t bytes = 0;
    for (const ModelCheckpoint* one : checkpoints) bytes += one->CacheableBytes();
    return bytes;
  };
  const uint64_t leased = ledger_->leased_bytes();
  Expect(leased >= sum(surely), "ranks are told that they are read for without memory for it");
  Expect(leased <= sum(perhaps), "memory is leased to nobody");
}

// A checkpoint, a demand and a wish for everything have a living session each.
void DaemonModel::CheckDemands() {
  std::set<const ModelCheckpoint*> held;
  std::set<SessionId> living;
  for (const ModelRank& rank : ranks_) {
    if (!rank.lives()) continue;
    living.insert(rank.id);
    if (!rank.ready.has_value()) continue;
    const ModelCheckpoint* const checkpoint = CheckpointOf(rank);
    if (checkpoint == nullptr) continue;
    held.insert(checkpoint);
    const bool demands = checkpoint->demanders().contains(rank.id);
    if (!rank.decision.has_value()) continue;
    if (rank.decision->effective == SessionPolicy::kNative) {
      Expect(!demands, NameOf(rank) + " loads natively, and is read for");
    } else if (!rank.terms.demand_follows) {
      Expect(checkpoint->WantsEverything(rank.id), NameOf(rank) + " is not read for");
    }
  }
  for (const ModelCheckpoint* checkpoint : store_->alive()) {
    Expect(held.contains(checkpoint) || releases_->size() > 0 || within_event_,
           "a checkpoint is held by nobody");
    for (const SessionId session : checkpoint->demanders()) {
      Expect(living.contains(session), "a demand outlives its session");
    }
    if (checkpoint->demanders().empty()) {
      Expect(checkpoint->progress().wanted_bytes == 0, "bytes are wanted by nobody");
    }
  }
}

void DaemonModel::CheckBoards() {
  for (ModelBoardWatch& board : boards_) {
    const bool closed = board.view->closed();
    Expect(closed || !board.closed, "a closed board serves again");
    board.closed = closed;
    Expect(closed || AliveOf(board.epoch) != nullptr, "a board serves, and its checkpoint is gone");
    for (uint64_t index = 0; index < board.places.size(); ++index) {
      const ExtentState state = board.view->state(index);
      CheckExtent(board, index, board.states[index], state);
      board.states[index] = state;
    }
  }
}

void DaemonModel::CheckExtent(const ModelBoardWatch& board, uint64_t index, ExtentState before,
                              ExtentState now) {
  const ModelBoardWatch::Place& place = board.places[index];
  const auto fault = [&](absl::string_view what) {
    Violate(absl::StrCat("extent ", index, " of checkpoint #", board.epoch, " ", what));
  };
  if (before == ExtentState::kResident && now == ExtentState::kQueued) Count("demanded further");
  switch (now) {
    case ExtentState::kResident:
      if (const ModelCheckpoint* const checkpoint = AliveOf(board.epoch)) {
        for (const SessionId session : checkpoint->demanders()) {
          CheckDemandedPages(board, index, session);
        }
      }
      if (!storage_.IsVerifiedInPart(board.epoch, place.file, place.begin, place.end)) {
        fault("is shown resident, and nothing of it was verified");
      }
      break;
    case ExtentState::kFailed:
      if (!storage_.HasFailed(board.epoch, place.file, place.begin, place.end)) {
        fault("is shown failed, and no read of it has failed");
      }
      break;
    case ExtentState::kReading:
      if (!storage_.IsBusy(board.epoch, place.file, place.begin, place.end)) {
        fault("is shown as being read, and nobody reads it");
      }
      break;
    case ExtentState::kQueued: {
      const ModelCheckpoint* const checkpoint = AliveOf(board.epoch);
      if (!board.closed && checkpoint != nullptr && checkpoint->demanders().empty()) {
        fault("is queued for nobody");
      }
      break;
    }
    case ExtentState::kAbsent:
      break;
  }
}

void DaemonModel::CheckDemandedPages(const ModelBoardWatch& board, uint64_t index,
                                     SessionId session) {
  const ModelCheckpoint* const checkpoint = AliveOf(board.epoch);
  if (checkpoint == nullptr) return;
  const ModelBoardWatch::Place& place = board.places[index];
  for (const uint64_t page : checkpoint->PagesOf(session, index)) {
    if (storage_.IsVerified(board.epoch, place.file, page,
                            std::min(page + ModelCheckpoint::kPageBytes, place.end))) {
      continue;
    }
    Violate(absl::StrCat("extent ", index, " of checkpoint #", board.epoch,
                         " is shown resident, and a demanded page was not verified: offset ", page,
                         " of ", place.file));
  }
}

// Who sleeps will be woken: what he waits for has not happened, or the count has moved since he
// looked. board_protocol_test shows that each move of the count is followed by the wake.
void DaemonModel::CheckWaits() {
  for (const ModelRank& rank : ranks_) {
    for (const ModelWait& wait : rank.waits) {
      if (!wait.asleep || rank.board->change_count() != wait.seen) continue;
      Expect(!IsSettled(rank.board->view->state(wait.extent)) && !rank.board->view->closed(),
             absl::StrCat(NameOf(rank), " sleeps for ever for extent ", wait.extent));
    }
  }
}

// The end.

void DaemonModel::RunUntilQuiet() {
  for (int i = 0; i < kQuietRoundsMax && outcome_.violation.empty(); ++i) {
    const std::vector<ModelStorage::LaneName> lanes = storage_.Runnable();
    if (!lanes.empty()) {
      storage_.Run(lanes[random_.Below(lanes.size())], /*stop_halfway=*/false);
    } else if (const auto reads = storage_.Reads(); !reads.empty()) {
      storage_.End(reads.front().id, absl::OkStatus());
    } else if (preparations_->size() > 0) {
      preparations_->Run(0);
    } else if (releases_->size() > 0) {
      releases_->Run(0);
    } else {
      return;
    }
  }
  Violate("the daemon does not come to rest");
}

// Nothing more happens than what must: then everybody has what was promised.
void DaemonModel::Settle() {
  Note("settle");
  within_event_ = true;  // nothing happens meanwhile
  RunUntilQuiet();
  CheckAll();
  now_ += absl::Hours(2);
  StepLoop();
  RunUntilQuiet();
  CheckAll();
  for (const ModelRank& rank : ranks_) {
    if (!rank.lives()) continue;
    Expect(rank.process->alive || rank.process->peer.pidfd == nullptr,
           NameOf(rank) + " outlives its process");
    Expect(rank.ready.has_value() && rank.decision.has_value(), NameOf(rank) + " has no answer");
    Expect(rank.deliveries_asked == rank.deliveries_answered,
           NameOf(rank) + " waits for its descriptors for ever");
  }
  for (const ModelCheckpoint* checkpoint : store_->alive()) {
    if (store_->stopped() || checkpoint->demanders().empty()) continue;
    Expect(checkpoint->progress().complete, "something is demanded and never read");
  }
  for (const ModelBoardWatch& board : boards_) {
    for (const ExtentState state : board.states) {
      Expect(board.closed || (state != ExtentState::kQueued && state != ExtentState::kReading),
             "an extent stays queued for ever");
    }
  }
}

void DaemonModel::EndEverything() {
  Note("everybody ends");
  for (ModelRank& rank : ranks_) {
    if (!rank.lives()) continue;
    registry_->Close(rank.id);
    CheckAll();
  }
  RunUntilQuiet();
  CheckEverythingIsZero();
  if (!registry_->draining()) CheckQuotaIsFree();
  within_event_ = false;
}

void DaemonModel::CheckEverythingIsZero() {
  Expect(registry_->Snapshot().empty(), "a session is left");
  Expect(groups_.empty(), "a group is left");
  Expect(ledger_->leased_bytes() == 0, "memory is leased to nobody");
  Expect(store_->alive().empty() && store_->List().empty(), "a checkpoint is held by nobody");
  Expect(storage_.lanes() == 0, "a lane is left");
}

// Every user can have again what a user may have.
void DaemonModel::CheckQuotaIsFree() {
  for (const uid_t uid : {0, 1}) {
    const size_t first = ranks_.size();
    ModelProcess process = {
        .number = 0, .peer = {.pid = 7, .uid = uid, .gid = 0, .pidfd = nullptr}, .alive = true};
    processes_.push_back(std::move(process));
    SessionTerms terms;
    terms.group_name = "quota";
    terms.local_size = 256;
    for (uint32_t i = 0; i < 64; ++i) terms.shards.push_back({.name = absl::StrCat("s", i)});
    for (uint32_t i = 0; i < 10; ++i) {
      ranks_.emplace_back();
      ModelRank& rank = ranks_.back();
      rank.number = ranks_.size();
      rank.process = &processes_.back();
      terms.local_rank = i;
      const auto id = registry_->Open(terms, rank.process->peer, ListenerFor(rank));
      Expect(id.ok(), "a user's share of sessions is not free again");
      rank.id = id.value_or(0);
      if (i > 0) continue;
      Expect(registry_->AdmitShards(rank.id, 0, terms.shards.size()).ok(),
             "a user's share of descriptors is not free again");
    }
    for (auto rank = std::next(ranks_.begin(), static_cast<std::ptrdiff_t>(first));
         rank != ranks_.end(); ++rank) {
      registry_->Close(rank->id);
    }
  }
}

}  // namespace forestage
