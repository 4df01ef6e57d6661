#include "daemon/staging/header_quota.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

bool Exceeds(uint64_t has, uint64_t more, uint64_t max) { return more > max || has > max - more; }

}  // namespace

HeaderQuota::HeaderQuota(const Options& options)
    : options_(options), ledger_(std::make_shared<Ledger>()) {}

std::shared_ptr<HeaderQuota::Hold> HeaderQuota::MakeHold(uid_t uid) {
  return std::shared_ptr<Hold>(new Hold(ledger_, options_, uid));
}

HeaderQuota::Hold::Hold(std::shared_ptr<Ledger> ledger, const Options& options, uid_t uid)
    : ledger_(std::move(ledger)), options_(options), uid_(uid) {}

HeaderQuota::Hold::~Hold() {
  absl::MutexLock lock(&ledger_->mutex);
  ledger_->bytes -= bytes_;
  const auto user = ledger_->bytes_of.find(uid_);
  if (user == ledger_->bytes_of.end()) return;
  user->second -= bytes_;
  if (user->second == 0) ledger_->bytes_of.erase(user);
}

absl::Status HeaderQuota::Hold::Add(uint64_t bytes) {
  absl::MutexLock lock(&ledger_->mutex);
  uint64_t& of_user = ledger_->bytes_of[uid_];
  const bool user_full = Exceeds(of_user, bytes, options_.user_bytes_max);
  if (user_full || Exceeds(ledger_->bytes, bytes, options_.bytes_max)) {
    const absl::Status refusal = absl::ResourceExhaustedError(absl::StrCat(
        user_full
            ? absl::StrCat("uid ", uid_, " has ", of_user, " bytes of headers and extents")
            : absl::StrCat("all users have ", ledger_->bytes, " bytes of headers and extents"),
        " with the daemon and may have ", user_full ? options_.user_bytes_max : options_.bytes_max,
        " (a part of its memory at its start); this checkpoint needs at least ", bytes_ + bytes));
    if (of_user == 0) ledger_->bytes_of.erase(uid_);
    return refusal;
  }
  of_user += bytes;
  ledger_->bytes += bytes;
  bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace forestage
