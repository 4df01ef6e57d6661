// Time and page faults of a load, without what is done in between to check it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace forestage {

// Runs from construction on. Counts major faults of the whole process. Not thread-safe.
class LoadClock {
 public:
  LoadClock();

  // Stops and goes on; each in its turn.
  void Pause();
  void Resume();

  // Without the pauses.
  absl::Duration elapsed() const;
  uint64_t major_faults() const;

 private:
  struct Reading {
    absl::Time time;
    uint64_t major_faults = 0;
  };
  static Reading Now();

  bool running_ = true;
  Reading since_;  // of the last start
  absl::Duration elapsed_before_;
  uint64_t major_faults_before_ = 0;
};

}  // namespace forestage
