#include "checkpoint/extent.h"

#include <algorithm>

#include "common/check.h"
#include "common/units.h"

namespace forestage {

ExtentMap::ExtentMap(absl::Span<const uint64_t> shard_bytes, uint64_t extent_bytes)
    : extent_bytes_(extent_bytes), shard_bytes_(shard_bytes.begin(), shard_bytes.end()) {
  CHECK(extent_bytes >= PageBytes() && (extent_bytes & (extent_bytes - 1)) == 0);
  first_extent_.reserve(shard_bytes_.size() + 1);
  first_extent_.push_back(0);
  for (const uint64_t bytes : shard_bytes_) {
    first_extent_.push_back(first_extent_.back() + DivideRoundingUp(bytes, extent_bytes_));
  }
}

uint64_t ExtentMap::extent_count() const { return first_extent_.back(); }

Extent ExtentMap::extent(uint64_t index) const {
  CHECK(index < extent_count());
  // The last shard that begins at or before it: shards of 0 bytes begin there too, and come first.
  const auto next = std::upper_bound(first_extent_.begin(), first_extent_.end(), index);
  const size_t shard = static_cast<size_t>(next - first_extent_.begin()) - 1;
  Extent extent;
  extent.shard_index = static_cast<uint32_t>(shard);
  extent.offset = (index - first_extent_[shard]) * extent_bytes_;
  extent.bytes = std::min(extent_bytes_, shard_bytes_[shard] - extent.offset);
  return extent;
}

std::pair<uint64_t, uint64_t> ExtentMap::Covering(uint32_t shard_index, uint64_t begin,
                                                  uint64_t end) const {
  CHECK(shard_index < shard_bytes_.size());
  CHECK(begin <= end && end <= shard_bytes_[shard_index]);
  const uint64_t first = first_extent_[shard_index] + begin / extent_bytes_;
  if (begin == end) return {first, first};
  return {first, first_extent_[shard_index] + (end - 1) / extent_bytes_ + 1};
}

}  // namespace forestage
