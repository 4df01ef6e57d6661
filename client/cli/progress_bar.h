// How far a long command is: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/recent_rate.h"

namespace forestage {

struct ProgressFigures {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  // Now, not since the beginning.
  double bytes_per_second = 0;
  // nullopt: unknown.
  std::optional<absl::Duration> time_left = std::nullopt;
};

// "staging  512 MiB of 1.00 GiB (50 %), 1.20 GiB/s, 0.427 s left". Nothing is said of a rate before
// there is one, of the time left when it is unknown, and of either at the end; "nothing comes" when
// something has come before and nothing does now.
std::string FormatProgressLine(absl::string_view label, const ProgressFigures& figures);

// The same behind a bar, if there is room for one in `columns` characters, and never longer.
std::string FormatProgressBar(absl::string_view label, const ProgressFigures& figures, int columns);

// Writes to standard error. Not thread-safe.
class ProgressBar {
 public:
  enum class Style {
    kAutomatic,  // a bar when standard error is a terminal, else lines
    kNone,
  };

  ProgressBar(std::string label, Style style);
  // Leaves the cursor on a fresh line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Cheap when called often: a bar is drawn ten times a second, a line every two seconds.
  void Update(const ProgressFigures& figures);
  // The same, where nobody else knows the rate: it is taken from the calls.
  void Update(uint64_t done_bytes, uint64_t total_bytes);
  // Writes the last state, if there was any; nothing comes afterwards. Idempotent.
  void Finish();

 private:
  void Write(absl::Time now);

  // Constant after construction.
  const std::string label_;
  const bool silent_;
  const bool terminal_;

  ProgressFigures figures_;
  RecentRate rate_;
  absl::Time next_;
  bool updated_ = false;
  bool bar_drawn_ = false;
  bool finished_ = false;
};

}  // namespace forestage
