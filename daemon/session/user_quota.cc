#include "daemon/session/user_quota.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "daemon/memory/memory_ledger.h"

namespace forestage {

UserQuota::UserQuota(const Options& options)
    : options_(options), ledger_(std::make_shared<Ledger>()) {}

absl::StatusOr<std::shared_ptr<UserQuota::Charge>> UserQuota::ChargeSession(uid_t uid) {
  absl::MutexLock lock(&ledger_->mutex);
  Account& account = ledger_->accounts[uid];
  if (account.sessions >= options_.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", uid, " has ", account.sessions,
                     " sessions, those included whose storage has not let go of them yet; its "
                     "limit is sessions-per-uid-max"));
  }
  ++account.sessions;
  return std::shared_ptr<Charge>(new Charge(ledger_, options_, uid, 1));
}

UserQuota::Charge::Charge(std::shared_ptr<Ledger> ledger, const Options& options, uid_t uid,
                          size_t sessions)
    : ledger_(std::move(ledger)), options_(options), uid_(uid), sessions_(sessions) {}

UserQuota::Charge::~Charge() {
  absl::MutexLock lock(&ledger_->mutex);
  const auto account = ledger_->accounts.find(uid_);
  account->second.sessions -= sessions_;
  account->second.descriptors -= descriptors_;
  if (account->second.empty()) ledger_->accounts.erase(account);
}

absl::Status UserQuota::Charge::AddDescriptors(size_t count) {
  absl::MutexLock lock(&ledger_->mutex);
  Account& account = ledger_->accounts[uid_];
  if (count > options_.descriptors_max || account.descriptors > options_.descriptors_max - count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", uid_, " wants ", count, " more descriptors, has ", account.descriptors,
                     " with the daemon and may have ", options_.descriptors_max,
                     "; raise the daemon's limit on open files (LimitNOFILE=)"));
  }
  account.descriptors += count;
  descriptors_ += count;
  return absl::OkStatus();
}

std::shared_ptr<UserQuota::Charge> UserQuota::Charge::SplitDescriptors() {
  std::shared_ptr<Charge> split(new Charge(ledger_, options_, uid_, 0));
  absl::MutexLock lock(&ledger_->mutex);
  split->MoveFrom(*this);
  return split;
}

void UserQuota::Charge::MoveFrom(Charge& other) {
  descriptors_ += std::exchange(other.descriptors_, 0);
}

void UserQuota::Charge::DropDescriptors() {
  absl::MutexLock lock(&ledger_->mutex);
  ledger_->accounts[uid_].descriptors -= std::exchange(descriptors_, 0);
}

UserQuota::StagedHold::StagedHold(std::shared_ptr<Ledger> ledger, StagedKey key)
    : ledger_(std::move(ledger)), key_(std::move(key)) {}

UserQuota::StagedHold::~StagedHold() {
  absl::MutexLock lock(&ledger_->mutex);
  const auto staged = ledger_->staged.find(key_);
  if (--staged->second.holders > 0) return;
  const auto account = ledger_->accounts.find(key_.first);
  account->second.staged_bytes -= staged->second.bytes;
  --account->second.staged_checkpoints;
  ledger_->staged.erase(staged);
  if (account->second.empty()) ledger_->accounts.erase(account);
}

std::unique_ptr<UserQuota::StagedHold> UserQuota::TakeStaged(const StagedKey& key, uint64_t bytes) {
  Staged& staged = ledger_->staged[key];
  if (staged.holders++ == 0) {
    Account& account = ledger_->accounts[key.first];
    // The sum does not run over, whatever checkpoints say that they have.
    staged.bytes = std::min(bytes, UINT64_MAX - account.staged_bytes);
    account.staged_bytes += staged.bytes;
    ++account.staged_checkpoints;
  }
  return std::unique_ptr<StagedHold>(new StagedHold(ledger_, key));
}

absl::StatusOr<std::unique_ptr<UserQuota::StagedHold>> UserQuota::HoldStaged(uid_t uid,
                                                                             const void* checkpoint,
                                                                             uint64_t bytes) {
  const StagedKey key(uid, checkpoint);
  absl::MutexLock lock(&ledger_->mutex);
  if (ledger_->staged.count(key) == 0) {
    const auto account = ledger_->accounts.find(uid);
    const uint64_t has = account == ledger_->accounts.end() ? 0 : account->second.staged_bytes;
    const uint64_t left = options_.staged_bytes_max - std::min(has, options_.staged_bytes_max);
    if (bytes > left) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "checkpoint needs ", FormatMemory(bytes), " of memory, ", FormatMemory(left),
          " available: staged-bytes-per-uid-max ", FormatMemory(options_.staged_bytes_max), " - ",
          FormatMemory(has), " of other checkpoints of uid ", uid));
    }
  }
  return TakeStaged(key, bytes);
}

std::unique_ptr<UserQuota::StagedHold> UserQuota::KeepStaged(uid_t uid, const void* checkpoint,
                                                             uint64_t bytes) {
  absl::MutexLock lock(&ledger_->mutex);
  return TakeStaged({uid, checkpoint}, bytes);
}

std::map<uid_t, uint64_t> UserQuota::StagedBytes() const {
  absl::MutexLock lock(&ledger_->mutex);
  std::map<uid_t, uint64_t> bytes;
  for (const auto& [uid, account] : ledger_->accounts) {
    if (account.staged_checkpoints > 0) bytes[uid] = account.staged_bytes;
  }
  return bytes;
}

}  // namespace forestage
