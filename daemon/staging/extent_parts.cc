#include "daemon/staging/extent_parts.h"

#include <algorithm>

#include "common/check.h"

namespace forestage {

ExtentParts::ExtentParts(Range range) {
  CHECK(range.begin <= range.end);
  if (range.begin < range.end) ranges_.push_back(range);
}

uint64_t ExtentParts::bytes() const {
  uint64_t bytes = 0;
  for (const Range& range : ranges_) bytes += range.end - range.begin;
  return bytes;
}

bool ExtentParts::Covers(Range range) const {
  if (range.begin >= range.end) return true;
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), range.begin,
      [](uint32_t begin, const Range& candidate) { return begin < candidate.begin; });
  return after != ranges_.begin() && (after - 1)->end >= range.end;
}

void ExtentParts::Add(Range range) {
  if (range.begin >= range.end) return;
  // All that touch it become one.
  const auto first =
      std::partition_point(ranges_.begin(), ranges_.end(),
                           [&](const Range& candidate) { return candidate.end < range.begin; });
  const auto last = std::partition_point(
      first, ranges_.end(), [&](const Range& candidate) { return candidate.begin <= range.end; });
  if (first == last) {
    ranges_.insert(first, range);
    return;
  }
  first->begin = std::min(first->begin, range.begin);
  first->end = std::max((last - 1)->end, range.end);
  ranges_.erase(first + 1, last);
}

void ExtentParts::Add(const ExtentParts& other) {
  for (const Range& range : other.ranges_) Add(range);
}

void ExtentParts::Coarsen(size_t ranges_max) {
  CHECK(ranges_max > 0);
  while (ranges_.size() > ranges_max) {
    size_t smallest = 1;
    const auto gap = [this](size_t i) { return ranges_[i].begin - ranges_[i - 1].end; };
    for (size_t i = 2; i < ranges_.size(); ++i) {
      if (gap(i) < gap(smallest)) smallest = i;
    }
    ranges_[smallest - 1].end = ranges_[smallest].end;
    ranges_.erase(ranges_.begin() + static_cast<ptrdiff_t>(smallest));
  }
}

ExtentParts ExtentParts::Intersect(const ExtentParts& other) const {
  ExtentParts common;
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const Range range = {.begin = std::max(a->begin, b->begin), .end = std::min(a->end, b->end)};
    if (range.begin < range.end) common.ranges_.push_back(range);
    (a->end < b->end ? a : b)++;
  }
  return common;
}

ExtentParts ExtentParts::Without(const ExtentParts& other) const {
  ExtentParts rest;
  auto taken = other.ranges_.begin();
  for (Range range : ranges_) {
    while (taken != other.ranges_.end() && taken->end <= range.begin) ++taken;
    for (auto cut = taken; cut != other.ranges_.end() && cut->begin < range.end; ++cut) {
      if (range.begin < cut->begin) {
        rest.ranges_.push_back({.begin = range.begin, .end = cut->begin});
      }
      range.begin = std::min(cut->end, range.end);
    }
    if (range.begin < range.end) rest.ranges_.push_back(range);
  }
  return rest;
}

}  // namespace forestage
