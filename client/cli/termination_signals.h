// SIGINT and SIGTERM as something to look at, not as something that happens in between.
#pragma once

#include <memory>

#include "absl/time/time.h"

namespace forestage {

// Blocks both signals in the calling thread, and so in the threads it starts afterwards; they stay
// pending until they are looked at. Make one in main's thread, before anything starts threads. Not
// thread-safe.
class TerminationSignals {
 public:
  TerminationSignals();
  // Restores the mask; a signal that was not looked at has its usual effect then.
  ~TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

  // Waits at most `timeout` for one of them. Once true, always true.
  bool Wait(absl::Duration timeout);
  // Has one come?
  bool received() { return Wait(absl::ZeroDuration()); }

 private:
  bool received_ = false;
  struct Masks;
  const std::unique_ptr<Masks> masks_;
};

}  // namespace forestage
