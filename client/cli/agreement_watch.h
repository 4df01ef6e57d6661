// Which ranks of a load under strict agreement wait for one that never came to the daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace forestage {

// A rank that fails before its open is unknown to the daemon, and the others would wait for it
// until the agreement's timeout. What the daemon knows it tells at once: only who is not told for a
// while waits for nothing. Not thread-safe.
class AgreementWatch {
 public:
  // What a daemon may take to tell the others.
  static constexpr absl::Duration kPatience = absl::Seconds(3);

  explicit AgreementWatch(size_t rank_count) : opened_(rank_count), ended_(rank_count) {}

  void OnOpened(size_t rank) { opened_[rank] = true; }
  void OnEnded(size_t rank, absl::Time now);

  // Ranks to be ended now, since they wait for `culprit()`. Each once.
  std::vector<size_t> TakeOverdue(absl::Time now);
  // The rank that was the first to end before its open.
  std::optional<size_t> culprit() const { return culprit_; }

 private:
  std::vector<bool> opened_;
  std::vector<bool> ended_;
  std::optional<size_t> culprit_;
  absl::Time overdue_at_ = absl::InfiniteFuture();
};

}  // namespace forestage
