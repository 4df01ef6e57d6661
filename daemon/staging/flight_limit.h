// How many bytes to have in flight on one mount: found by trying.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace forestage {

// Too few bytes in flight leave a device with long latency idle; too many gain nothing on a device
// that is busy already and make whoever waits for one extent wait for those before it. So the limit
// climbs as long as throughput does, and comes down as long as that costs nothing: it settles at
// the smallest that is about as fast as any. Deterministic: time comes from the caller. Not
// thread-safe.
class FlightLimit {
 public:
  // Begins at `start` and stays within [min, max]. Requires: 0 < min <= start <= max.
  struct Range {
    uint64_t min = 0;
    uint64_t start = 0;
    uint64_t max = 0;
  };
  explicit FlightLimit(Range range);

  uint64_t bytes() const { return limit_; }
  // A read of so many bytes has ended well. `limited`: a further read waits for its place, so that
  // the limit, and not a lack of demand, sets the throughput.
  void OnRead(uint64_t bytes, absl::Time now, bool limited);

 private:
  enum class Step { kHold, kUp, kDown };

  void BeginEpoch(absl::Time now, bool settle);
  void OnEpoch(double bytes_per_second);
  void Try(Step step, double bytes_per_second);
  void Hold();

  const Range range_;
  uint64_t limit_;
  // The change on trial, from where, and what it was worth there.
  Step step_ = Step::kHold;
  uint64_t before_ = 0;
  double rate_before_ = 0;
  // Epochs until the next trial, the trial after that, and how many epochs to hold after it.
  int hold_epochs_ = 1;
  Step next_step_ = Step::kUp;
  int next_hold_epochs_;

  // The epoch: nullopt until the first read.
  std::optional<absl::Time> begun_;
  // Bytes still to end that were in flight before the limit changed.
  uint64_t settling_bytes_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace forestage
