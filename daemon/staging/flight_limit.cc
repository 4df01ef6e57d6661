#include "daemon/staging/flight_limit.h"

#include <algorithm>

#include "common/check.h"

namespace forestage {
namespace {

// By how much one trial changes the limit.
constexpr double kFactor = 1.5;
// A larger limit must gain so much to stay, a smaller one may lose so much.
constexpr double kGainWanted = 1.08;
constexpr double kLossAllowed = 0.97;
// An epoch is measured over so many times the limit and at least so long: shorter ones are noise.
constexpr uint64_t kEpochLimits = 3;
constexpr absl::Duration kEpochMin = absl::Milliseconds(50);
// Epochs between two trials: few at first, more each time that nothing was gained.
constexpr int kHoldEpochsMin = 4;
constexpr int kHoldEpochsMax = 64;

}  // namespace

FlightLimit::FlightLimit(Range range)
    : range_(range), limit_(range.start), next_hold_epochs_(kHoldEpochsMin) {
  CHECK(range.min > 0 && range.min <= range.start && range.start <= range.max);
}

void FlightLimit::BeginEpoch(absl::Time now, bool settle) {
  begun_ = now;
  bytes_ = 0;
  settling_bytes_ = settle ? std::max(limit_, before_) : 0;
}

void FlightLimit::OnRead(uint64_t bytes, absl::Time now, bool limited) {
  if (!begun_.has_value() || !limited) return BeginEpoch(now, step_ != Step::kHold);
  if (settling_bytes_ > 0) {
    settling_bytes_ -= std::min(settling_bytes_, bytes);
    if (settling_bytes_ == 0) begun_ = now;
    return;
  }
  bytes_ += bytes;
  const absl::Duration elapsed = now - *begun_;
  if (bytes_ < kEpochLimits * limit_ || elapsed < kEpochMin) return;
  OnEpoch(static_cast<double>(bytes_) / absl::ToDoubleSeconds(elapsed));
  BeginEpoch(now, step_ != Step::kHold);
}

void FlightLimit::OnEpoch(double bytes_per_second) {
  if (step_ == Step::kHold) {
    if (--hold_epochs_ <= 0) Try(next_step_, bytes_per_second);
    return;
  }
  const bool keep = step_ == Step::kUp ? bytes_per_second > rate_before_ * kGainWanted
                                       : bytes_per_second > rate_before_ * kLossAllowed;
  if (keep) {
    next_hold_epochs_ = kHoldEpochsMin;
    return Try(step_, bytes_per_second);
  }
  next_step_ = step_ == Step::kUp ? Step::kDown : Step::kUp;
  limit_ = before_;
  Hold();
}

void FlightLimit::Try(Step step, double bytes_per_second) {
  before_ = limit_;
  rate_before_ = bytes_per_second;
  step_ = step;
  const double wanted = static_cast<double>(limit_) * (step == Step::kUp ? kFactor : 1 / kFactor);
  limit_ = std::clamp(static_cast<uint64_t>(wanted), range_.min, range_.max);
  if (limit_ != before_) return;
  next_step_ = step == Step::kUp ? Step::kDown : Step::kUp;
  Hold();
}

void FlightLimit::Hold() {
  step_ = Step::kHold;
  hold_epochs_ = next_hold_epochs_;
  next_hold_epochs_ = std::min(2 * next_hold_epochs_, kHoldEpochsMax);
}

}  // namespace forestage
