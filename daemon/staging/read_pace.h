// When a read may begin, so that no more than so many bytes a second are read.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace forestage {

// In any time, at most the rate times this time, the credit, and one read are begun. A read is paid
// for when it begins; what it did not need is given back. Deterministic: time comes from the
// caller. Not thread-safe.
class ReadPace {
 public:
  // Time in which nothing was read counts up to this: so that who is woken late, or whose storage
  // was slow for a moment, still comes to the rate.
  static constexpr absl::Duration kCredit = absl::Milliseconds(100);

  // Requires: bytes_per_second > 0.
  explicit ReadPace(uint64_t bytes_per_second);

  uint64_t bytes_per_second() const { return bytes_per_second_; }
  // From when on the next read may begin, however large it is.
  absl::Time Next(absl::Time now);
  // A read of so many bytes begins. Requires: now >= Next(now).
  void Take(uint64_t bytes, absl::Time now);
  // Of what was taken, so many bytes were not read.
  void GiveBack(uint64_t bytes);

 private:
  absl::Duration TimeOf(uint64_t bytes) const;

  const uint64_t bytes_per_second_;
  absl::Time next_ = absl::InfinitePast();
  // The latest time that the caller gave.
  absl::Time seen_ = absl::InfinitePast();
};

}  // namespace forestage
