// Which bytes a rank that reads by itself will want soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

#include "common/units.h"

namespace forestage {

// Follows a reader and says, ahead of it, what it comes to next, once, across slices and shards: a
// window of bounded size, which it moves on in steps, so that a small tensor costs nothing. Knows
// the order from the rank's demand; without one it takes a reader that goes on where it ended for
// one that goes through the files, and anybody else only to the end of its slice. Thread-safe.
class ReadAhead {
 public:
  static constexpr uint64_t kWindowBytes = 32 * kMiB;
  // The window begins with what is read at once, so that a rank's first tensor does not wait for
  // what comes after it, and doubles with each move.
  static constexpr uint64_t kFirstWindowBytes = 8 * kMiB;
  static constexpr uint64_t kStepBytes = 2 * kMiB;

  // Bytes [begin, end) of one shard.
  struct Part {
    uint32_t shard_index = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Told about bytes of one shard that will be wanted soon. May block on storage; called by one
  // thread at a time.
  using Advise = std::function<void(const Part& part)>;

  // Without an order: files of these sizes.
  ReadAhead(absl::Span<const uint64_t> shard_bytes, Advise advise);
  // `order`: what the reader will want, in order.
  ReadAhead(std::vector<Part> order, Advise advise);

  // The reader is about to read from `begin` and goes on to the end of its slice. Does nothing
  // while another thread is in it. Requires: slice.begin <= begin < slice.end.
  void MoveTo(const Part& slice, uint64_t begin) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ReadAhead(std::vector<Part> order, bool order_known, Advise advise);
  void MoveToLocked(const Part& slice, uint64_t begin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes of the order before this place; nullopt when it does not occur.
  std::optional<uint64_t> PositionOf(uint32_t shard_index, uint64_t offset) const;
  void AdviseOrder(uint64_t begin_position, uint64_t end_position);

  // Constant after construction.
  const Advise advise_;
  const bool order_known_;
  const std::vector<Part> order_;
  std::vector<uint64_t> positions_;  // of each part, and of the end
  std::vector<size_t> by_place_;     // indexes of order_, sorted by shard and begin

  absl::Mutex mutex_;
  // Positions [swept_from_, advised_to_) have been advised for a reader that went through them.
  uint64_t swept_from_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t advised_to_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t window_bytes_ ABSL_GUARDED_BY(mutex_) = kFirstWindowBytes;
  // The reader of the present slice is expected to go on behind it.
  bool beyond_slice_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forestage
