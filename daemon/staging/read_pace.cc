#include "daemon/staging/read_pace.h"

#include <algorithm>

#include "common/check.h"

namespace forestage {
namespace {

// Less is what threads that asked for the time at the same moment differ by.
constexpr absl::Duration kClockStep = absl::Seconds(1);

}  // namespace

ReadPace::ReadPace(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {
  CHECK(bytes_per_second > 0);
}

absl::Duration ReadPace::TimeOf(uint64_t bytes) const {
  return absl::Seconds(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
}

absl::Time ReadPace::Next(absl::Time now) {
  // The clock was set back: nobody is to wait until it is where it was.
  if (now < seen_ - kClockStep) next_ -= seen_ - now;
  seen_ = now < seen_ - kClockStep ? now : std::max(seen_, now);
  return next_;
}

void ReadPace::Take(uint64_t bytes, absl::Time now) {
  CHECK(now >= Next(now));
  next_ = std::max(next_, now - kCredit) + TimeOf(bytes);
}

void ReadPace::GiveBack(uint64_t bytes) { next_ -= TimeOf(bytes); }

}  // namespace forestage
