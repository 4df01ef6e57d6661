#include "client/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/byte_format.h"
#include <sys/ioctl.h>

namespace forestage {
namespace {

constexpr absl::Duration kBarInterval = absl::Milliseconds(100);
constexpr absl::Duration kLineInterval = absl::Seconds(2);
constexpr int kBarCellsMax = 24;
constexpr int kBarCellsMin = 4;
constexpr int kColumnsDefault = 80;

int TerminalColumns() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumnsDefault;
  return size.ws_col;
}

double Fraction(const ProgressFigures& figures) {
  if (figures.total_bytes == 0) return 1;
  return std::min(
      1.0, static_cast<double>(figures.done_bytes) / static_cast<double>(figures.total_bytes));
}

}  // namespace

std::string FormatProgressLine(absl::string_view label, const ProgressFigures& figures) {
  // Rounded down: 100 % means all.
  const int percent = static_cast<int>(Fraction(figures) * 100);
  std::string line = absl::StrCat(label, "  ", FormatBytes(figures.done_bytes), " of ",
                                  FormatBytes(figures.total_bytes), " (", percent, " %)");
  if (figures.done_bytes == 0 || figures.done_bytes >= figures.total_bytes) return line;
  if (figures.bytes_per_second <= 0) return absl::StrCat(line, ", nothing comes");
  absl::StrAppend(&line, ", ", FormatBytes(static_cast<uint64_t>(figures.bytes_per_second)), "/s");
  if (figures.time_left.has_value()) {
    absl::StrAppend(&line, ", ", FormatSeconds(absl::ToDoubleSeconds(*figures.time_left)), " left");
  }
  return line;
}

std::string FormatProgressBar(absl::string_view label, const ProgressFigures& figures,
                              int columns) {
  std::string line = FormatProgressLine(label, figures);
  // The bar takes what the figures leave: two brackets and a space stand around its cells.
  const int cells = std::min(kBarCellsMax, columns - static_cast<int>(line.size()) - 3);
  if (cells >= kBarCellsMin) {
    const int filled = static_cast<int>(Fraction(figures) * cells);
    line =
        absl::StrCat("[", std::string(filled, '#'), std::string(cells - filled, '.'), "] ", line);
  }
  if (columns > 0 && line.size() > static_cast<size_t>(columns)) line.resize(columns);
  return line;
}

ProgressBar::ProgressBar(std::string label, Style style)
    : label_(std::move(label)),
      silent_(style == Style::kNone),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(absl::Now() + (terminal_ ? kBarInterval : kLineInterval)) {
  rate_.Begin(absl::Now());
}

ProgressBar::~ProgressBar() {
  if (bar_drawn_ && !finished_) std::fputc('\n', stderr);
}

void ProgressBar::Update(const ProgressFigures& figures) {
  if (silent_ || finished_) return;
  figures_ = figures;
  updated_ = true;
  if (const absl::Time now = absl::Now(); now >= next_) Write(now);
}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  const absl::Time now = absl::Now();
  if (done_bytes > figures_.done_bytes) rate_.Add(done_bytes - figures_.done_bytes, now);
  const uint64_t left_bytes = total_bytes - std::min(done_bytes, total_bytes);
  Update(ProgressFigures{.done_bytes = done_bytes,
                         .total_bytes = total_bytes,
                         .bytes_per_second = rate_.BytesPerSecond(now),
                         .time_left = rate_.TimeLeft(left_bytes, now)});
}

void ProgressBar::Finish() {
  if (silent_ || finished_ || !updated_) return;
  Write(absl::Now());
  if (terminal_) std::fputc('\n', stderr);
  finished_ = true;
}

void ProgressBar::Write(absl::Time now) {
  if (terminal_) {
    // One column is left free: some terminals wrap at the last.
    const std::string bar = FormatProgressBar(label_, figures_, TerminalColumns() - 1);
    std::fprintf(stderr, "\r%s\033[K", bar.c_str());
    bar_drawn_ = true;
  } else {
    std::fprintf(stderr, "%s\n", FormatProgressLine(label_, figures_).c_str());
  }
  std::fflush(stderr);
  next_ = now + (terminal_ ? kBarInterval : kLineInterval);
}

}  // namespace forestage
