#include "daemon/session/user_quota.h"

#include <utility>

#include "absl/strings/str_cat.h"

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
  if (account->second.sessions == 0 && account->second.descriptors == 0) {
    ledger_->accounts.erase(account);
  }
}

absl::Status UserQuota::Charge::AddDescriptors(size_t count) {
  absl::MutexLock lock(&ledger_->mutex);
  Account& account = ledger_->accounts[uid_];
  if (count > options_.descriptors_max || account.descriptors > options_.descriptors_max - count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", uid_, " has ", account.descriptors,
                     " descriptors with the daemon and ", "may have ", options_.descriptors_max,
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

}  // namespace forestage
