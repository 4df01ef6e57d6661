#include "client/cli/load_clock.h"

#include "absl/time/clock.h"
#include <sys/resource.h>

#include "common/check.h"

namespace forestage {

LoadClock::Reading LoadClock::Now() {
  rusage usage = {};
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return {.time = absl::Now(), .major_faults = static_cast<uint64_t>(usage.ru_majflt)};
}

LoadClock::LoadClock() : since_(Now()) {}

void LoadClock::Pause() {
  CHECK(running_);
  elapsed_before_ = elapsed();
  major_faults_before_ = major_faults();
  running_ = false;
}

void LoadClock::Resume() {
  CHECK(!running_);
  since_ = Now();
  running_ = true;
}

absl::Duration LoadClock::elapsed() const {
  return elapsed_before_ + (running_ ? absl::Now() - since_.time : absl::ZeroDuration());
}

uint64_t LoadClock::major_faults() const {
  return major_faults_before_ + (running_ ? Now().major_faults - since_.major_faults : 0);
}

}  // namespace forestage
