// Extents: the fixed-size pieces in which shards are read, dealt to lanes and accounted.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace forestage {

inline constexpr uint64_t kExtentBytesDefault = 8 * 1024 * 1024;

struct Extent {
  uint32_t shard_index = 0;
  // Of the file, a multiple of the extent size.
  uint64_t offset = 0;
  // The extent size, less for the last one of a shard.
  uint64_t bytes = 0;
};

// Numbers the extents of a checkpoint: shard after shard, each cut from offset 0 (header included).
// A shard of 0 bytes has none. Immutable, thread-safe.
class ExtentMap {
 public:
  // Requires: extent_bytes is a power of two and at least the page size.
  ExtentMap(absl::Span<const uint64_t> shard_bytes, uint64_t extent_bytes);

  uint64_t extent_count() const;
  uint64_t extent_bytes() const { return extent_bytes_; }

  // Requires: index < extent_count().
  Extent extent(uint64_t index) const;
  // [first, last) of the extents that hold bytes [begin, end) of a shard; empty for an empty range.
  // Requires: shard_index is in range, begin <= end <= the shard's bytes.
  std::pair<uint64_t, uint64_t> Covering(uint32_t shard_index, uint64_t begin, uint64_t end) const;

 private:
  uint64_t extent_bytes_;
  std::vector<uint64_t> shard_bytes_;
  std::vector<uint64_t> first_extent_;  // shard_count + 1 entries
};

}  // namespace forestage
