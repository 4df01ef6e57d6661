// What stands behind a Slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/checkpoint_files.h"
#include "client/src/load_session.h"
#include "client/src/read_ahead.h"
#include "client/src/read_places.h"

#include "checkpoint/slice.h"
#include "forestage/slice.h"

namespace forestage {

// Immutable, thread-safe. Its destructor does nothing in a forked child.
class Slice::State {
 public:
  State(std::shared_ptr<const LoadSession> session, SlicePlan plan, size_t tensor_index,
        uint32_t shard_index);
  ~State();

  const SlicePlan& plan() const { return plan_; }
  size_t tensor_index() const { return tensor_index_; }

  absl::StatusOr<SliceView> View(absl::Time deadline) const;
  absl::Status CopyTo(absl::Span<std::byte> destination, absl::Time deadline) const;

 private:
  const OpenShard& shard() const;
  // Waits for [begin, end), part of a read of this slice, and asks the kernel to read ahead when
  // nobody else reads it. The first part is read whatever the time.
  absl::Status Prepare(uint64_t begin, uint64_t end, absl::Time deadline,
                       ReadPlaces::Mark& mark) const;
  // Does it in another thread, which may stay behind: the kernel may never come back. Of a part
  // that is asked for late it waits a moment longer.
  absl::Status BringInUntil(const ReadAhead::Part& slice, uint64_t begin, uint64_t end,
                            absl::Time deadline) const;
  // For files that cannot be mapped or populated: a copy in anonymous memory.
  absl::StatusOr<SliceView> CopiedView(absl::Time deadline) const;
  absl::Status CopyContiguous(absl::Span<std::byte> destination, absl::Time deadline) const;
  absl::Status CopyStrided(absl::Span<std::byte> destination, absl::Time deadline) const;

  std::shared_ptr<const LoadSession> session_;
  const std::shared_ptr<const CheckpointFiles> files_;
  const SlicePlan plan_;
  const size_t tensor_index_;
  const uint32_t shard_index_;
};

}  // namespace forestage
