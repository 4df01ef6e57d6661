// How fast something grows now: bytes a second over the last few seconds.
//
// An average since the beginning hides that storage has become slow, or stands still. The rate is
// computed here for both the daemon and the command line tool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace forestage {

// Not thread-safe. The caller gives the time, so that tests need no clock; a time before one given
// earlier (the clock was set back) begins anew.
class RecentRate {
 public:
  // Over how long the rate is taken: in so many steps of this length.
  static constexpr int64_t kSteps = 32;
  static constexpr absl::Duration kStep = absl::Milliseconds(125);
  static constexpr absl::Duration kWindow = absl::Seconds(4);
  // No rate is taken over less: it would be noise.
  static constexpr absl::Duration kElapsedMin = absl::Milliseconds(100);

  // Something begins to grow: what lies before does not count. Without it, the first Add does.
  void Begin(absl::Time now);
  void Add(uint64_t bytes, absl::Time now);

  // 0 when nothing was added in the last kWindow.
  double BytesPerSecond(absl::Time now);
  // How long `left_bytes` take at this rate; nullopt: they do not come (a rate of 0). Zero for 0.
  std::optional<absl::Duration> TimeLeft(uint64_t left_bytes, absl::Time now);

 private:
  // Forgets what is older than the window at `now`.
  void Advance(absl::Time now);

  // Ring: bytes of step i of the time since begun_ at i mod kSteps, for the last kSteps steps.
  std::array<uint64_t, kSteps> bytes_ = {};
  uint64_t sum_ = 0;
  int64_t last_step_ = 0;
  // InfiniteFuture: not begun.
  absl::Time begun_ = absl::InfiniteFuture();
};

}  // namespace forestage
