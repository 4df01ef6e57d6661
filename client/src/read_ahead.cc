#include "client/src/read_ahead.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace forestage {
namespace {

std::vector<ReadAhead::Part> WholeShards(absl::Span<const uint64_t> shard_bytes) {
  std::vector<ReadAhead::Part> parts;
  parts.reserve(shard_bytes.size());
  for (uint32_t i = 0; i < shard_bytes.size(); ++i) {
    parts.push_back({.shard_index = i, .begin = 0, .end = shard_bytes[i]});
  }
  return parts;
}

}  // namespace

ReadAhead::ReadAhead(absl::Span<const uint64_t> shard_bytes, Advise advise)
    : ReadAhead(WholeShards(shard_bytes), /*order_known=*/false, std::move(advise)) {}

ReadAhead::ReadAhead(std::vector<Part> order, Advise advise)
    : ReadAhead(std::move(order), /*order_known=*/true, std::move(advise)) {}

ReadAhead::ReadAhead(std::vector<Part> order, bool order_known, Advise advise)
    : advise_(std::move(advise)),
      order_known_(order_known),
      order_(std::move(order)),
      by_place_(order_.size()) {
  positions_.reserve(order_.size() + 1);
  positions_.push_back(0);
  for (const Part& part : order_) positions_.push_back(positions_.back() + (part.end - part.begin));
  std::iota(by_place_.begin(), by_place_.end(), size_t{0});
  // Of two parts with one beginning the longer one is found.
  std::stable_sort(by_place_.begin(), by_place_.end(), [this](size_t a, size_t b) {
    return std::tie(order_[a].shard_index, order_[a].begin, order_[a].end) <
           std::tie(order_[b].shard_index, order_[b].begin, order_[b].end);
  });
}

std::optional<uint64_t> ReadAhead::PositionOf(uint32_t shard_index, uint64_t offset) const {
  const auto after = std::partition_point(by_place_.begin(), by_place_.end(), [&](size_t index) {
    return std::tie(order_[index].shard_index, order_[index].begin) <=
           std::tie(shard_index, offset);
  });
  if (after == by_place_.begin()) return std::nullopt;
  const size_t index = *(after - 1);
  const Part& part = order_[index];
  if (part.shard_index != shard_index || offset >= part.end) return std::nullopt;
  return positions_[index] + (offset - part.begin);
}

void ReadAhead::MoveTo(const Part& slice, uint64_t begin) {
  if (!mutex_.TryLock()) return;
  MoveToLocked(slice, begin);
  mutex_.Unlock();
}

void ReadAhead::MoveToLocked(const Part& slice, uint64_t begin) {
  const std::optional<uint64_t> found = PositionOf(slice.shard_index, begin);
  if (!found.has_value()) {
    // Nothing is known of what comes after the slice.
    advise_({.shard_index = slice.shard_index,
             .begin = begin,
             .end = std::min(slice.end, begin + kWindowBytes)});
    return;
  }
  const uint64_t position = *found;
  const uint64_t slice_end = position + (slice.end - begin);
  const bool goes_on = position >= swept_from_ && position <= advised_to_;
  if (!goes_on) {
    swept_from_ = advised_to_ = position;
    window_bytes_ = kFirstWindowBytes;
  }
  if (begin == slice.begin) beyond_slice_ = goes_on || order_known_;
  const uint64_t end = beyond_slice_ ? positions_.back() : slice_end;
  const uint64_t target = std::min(end, position + window_bytes_);
  if (target <= advised_to_) return;
  // A small step may wait, unless the slice itself or the end of all comes with it.
  if (target < advised_to_ + kStepBytes && target < end && advised_to_ >= slice_end) return;
  AdviseOrder(advised_to_, target);
  advised_to_ = target;
  window_bytes_ = std::min(kWindowBytes, 2 * window_bytes_);
}

void ReadAhead::AdviseOrder(uint64_t begin_position, uint64_t end_position) {
  auto index =
      static_cast<size_t>(std::upper_bound(positions_.begin(), positions_.end(), begin_position) -
                          positions_.begin() - 1);
  // Parts that follow each other in a file are told as one.
  Part pending;
  for (; index < order_.size() && positions_[index] < end_position; ++index) {
    const Part& whole = order_[index];
    const uint64_t skip =
        begin_position > positions_[index] ? begin_position - positions_[index] : 0;
    const uint64_t take = std::min(whole.end - whole.begin, end_position - positions_[index]);
    if (skip >= take) continue;
    const Part part = {
        .shard_index = whole.shard_index, .begin = whole.begin + skip, .end = whole.begin + take};
    if (part.shard_index == pending.shard_index && part.begin == pending.end) {
      pending.end = part.end;
      continue;
    }
    if (pending.begin < pending.end) advise_(pending);
    pending = part;
  }
  if (pending.begin < pending.end) advise_(pending);
}

}  // namespace forestage
