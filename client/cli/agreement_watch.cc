#include "client/cli/agreement_watch.h"

namespace forestage {

void AgreementWatch::OnEnded(size_t rank, absl::Time now) {
  ended_[rank] = true;
  if (opened_[rank] || culprit_.has_value()) return;
  culprit_ = rank;
  overdue_at_ = now + kPatience;
}

std::vector<size_t> AgreementWatch::TakeOverdue(absl::Time now) {
  std::vector<size_t> overdue;
  if (now < overdue_at_) return overdue;
  overdue_at_ = absl::InfiniteFuture();
  for (size_t i = 0; i < opened_.size(); ++i) {
    if (!opened_[i] && !ended_[i]) overdue.push_back(i);
  }
  return overdue;
}

}  // namespace forestage
