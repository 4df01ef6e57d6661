// Slice arithmetic: which bytes of a file a rectangular part of a tensor is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "checkpoint/dtype.h"

namespace forestage {

// Elements [start, stop) of one dimension.
struct DimensionRange {
  uint64_t start = 0;
  uint64_t stop = 0;
};

// A rectangular part of a tensor in C order, as runs of consecutive bytes.
class SlicePlan {
 public:
  // `ranges` has one entry a dimension, or fewer: the dimensions left out are taken whole. A scalar
  // takes none. `tensor_begin` is the tensor's first byte in its file.
  // INVALID_ARGUMENT: more ranges than dimensions; start > stop; stop beyond the dimension; a
  // sub-byte slice whose runs do not begin and end at bytes (as the reference reader).
  static absl::StatusOr<SlicePlan> Create(Dtype dtype, absl::Span<const uint64_t> shape,
                                          absl::Span<const DimensionRange> ranges,
                                          uint64_t tensor_begin);

  // Of the slice; same rank as the tensor.
  const std::vector<uint64_t>& shape() const { return shape_; }
  // Of the packed slice. 0 when a dimension is empty.
  uint64_t bytes() const { return run_bytes_ * run_count_; }
  // One run: the slice can be used in place.
  bool contiguous() const { return run_count_ <= 1; }
  uint64_t run_count() const { return run_count_; }
  uint64_t run_bytes() const { return run_bytes_; }
  // [begin, end) in the file that holds all runs; begin == end for an empty slice.
  uint64_t file_begin() const { return file_begin_; }
  uint64_t file_end() const { return file_end_; }

  // Calls back for runs [first_run, last_run) in packed order: run i goes to packed offset
  // i * run_bytes(). Requires: first_run <= last_run <= run_count().
  void ForEachRun(uint64_t first_run, uint64_t last_run,
                  const std::function<void(uint64_t file_offset)>& visit) const;

 private:
  SlicePlan() = default;
  // File offset of a run's first byte.
  uint64_t RunOffset(uint64_t run) const;

  std::vector<uint64_t> shape_;
  uint64_t run_bytes_ = 0;
  uint64_t run_count_ = 0;
  uint64_t file_begin_ = 0;
  uint64_t file_end_ = 0;
  // Outer dimensions over which runs iterate, slowest first: how many, and bytes between two.
  struct OuterDimension {
    uint64_t count;
    uint64_t stride_bytes;
  };
  std::vector<OuterDimension> outer_;
};

}  // namespace forestage
