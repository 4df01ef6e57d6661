#include "common/recent_rate.h"

#include <algorithm>

namespace forestage {

void RecentRate::Begin(absl::Time now) {
  bytes_.fill(0);
  sum_ = 0;
  last_step_ = 0;
  begun_ = now;
}

void RecentRate::Advance(absl::Time now) {
  const int64_t step = (now - begun_) / kStep;
  if (now < begun_ || step < last_step_) return Begin(now);
  // The steps that have passed had nothing.
  const int64_t passed = std::min(step - last_step_, kSteps);
  for (int64_t i = 1; i <= passed; ++i) {
    uint64_t& oldest = bytes_[static_cast<size_t>((last_step_ + i) % kSteps)];
    sum_ -= oldest;
    oldest = 0;
  }
  if (passed == kSteps) {
    bytes_.fill(0);
    sum_ = 0;
  }
  last_step_ = step;
}

void RecentRate::Add(uint64_t bytes, absl::Time now) {
  if (begun_ == absl::InfiniteFuture()) Begin(now);
  Advance(now);
  bytes_[static_cast<size_t>(last_step_ % kSteps)] += bytes;
  sum_ += bytes;
}

double RecentRate::BytesPerSecond(absl::Time now) {
  if (begun_ == absl::InfiniteFuture()) return 0;
  Advance(now);
  // The ring covers whole steps and the one that runs.
  const int64_t first_step = std::max<int64_t>(0, last_step_ - kSteps + 1);
  const absl::Duration covered = now - (begun_ + first_step * kStep);
  return static_cast<double>(sum_) / absl::ToDoubleSeconds(std::max(covered, kElapsedMin));
}

std::optional<absl::Duration> RecentRate::TimeLeft(uint64_t left_bytes, absl::Time now) {
  if (left_bytes == 0) return absl::ZeroDuration();
  const double rate = BytesPerSecond(now);
  if (rate <= 0) return std::nullopt;
  return absl::Seconds(static_cast<double>(left_bytes) / rate);
}

}  // namespace forestage
