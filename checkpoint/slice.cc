#include "checkpoint/slice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/check.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

absl::Status CheckRanges(absl::Span<const uint64_t> shape,
                         absl::Span<const DimensionRange> ranges) {
  if (ranges.size() > shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranges.size(), " ranges for a tensor of rank ", shape.size()));
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].start > ranges[i].stop || ranges[i].stop > shape[i]) {
      return absl::InvalidArgumentError(absl::StrCat("[", ranges[i].start, ", ", ranges[i].stop,
                                                     ") is no range of dimension ", i,
                                                     ", which has ", shape[i], " elements"));
    }
  }
  return absl::OkStatus();
}

// Bits between two neighbours of each dimension. INVALID_ARGUMENT when the tensor does not fit 64
// bits. Requires: no dimension is 0.
absl::StatusOr<std::vector<uint64_t>> StrideBits(Dtype dtype, absl::Span<const uint64_t> shape,
                                                 uint64_t tensor_begin) {
  std::vector<uint64_t> strides(shape.size());
  uint64_t bits = DtypeBits(dtype);
  bool overflow = false;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = bits;
    overflow = overflow || __builtin_mul_overflow(bits, shape[i], &bits);
  }
  uint64_t end;
  if (overflow || __builtin_add_overflow(tensor_begin, bits / 8, &end)) {
    return absl::InvalidArgumentError("the tensor does not fit 64 bits of size");
  }
  return strides;
}

absl::Status MisalignedError(Dtype dtype, uint64_t bits) {
  return absl::InvalidArgumentError(absl::StrCat(
      "a slice of ", DtypeName(dtype), " that would begin or end inside a byte, at bit ", bits));
}

}  // namespace

absl::StatusOr<SlicePlan> SlicePlan::Create(Dtype dtype, absl::Span<const uint64_t> shape,
                                            absl::Span<const DimensionRange> ranges,
                                            uint64_t tensor_begin) {
  RETURN_IF_ERROR(CheckRanges(shape, ranges));
  SlicePlan plan;
  std::vector<DimensionRange> full(ranges.begin(), ranges.end());
  for (size_t i = ranges.size(); i < shape.size(); ++i) full.push_back({0, shape[i]});
  bool empty = false;
  for (const DimensionRange& range : full) {
    plan.shape_.push_back(range.stop - range.start);
    empty = empty || range.start == range.stop;
  }
  plan.file_begin_ = tensor_begin;
  plan.file_end_ = tensor_begin;
  if (empty) return plan;

  ASSIGN_OR_RETURN(const std::vector<uint64_t> strides, StrideBits(dtype, shape, tensor_begin));
  // A run is the part of the innermost dimension that is not whole, with all below it.
  size_t run_dimension = shape.size();
  while (run_dimension > 0 && plan.shape_[run_dimension - 1] == shape[run_dimension - 1]) {
    --run_dimension;
  }
  uint64_t run_bits = DtypeBits(dtype);
  for (const uint64_t dimension : plan.shape_) run_bits *= dimension;
  uint64_t begin_bits = 0;
  if (run_dimension > 0) {
    const DimensionRange& range = full[run_dimension - 1];
    const uint64_t stride = strides[run_dimension - 1];
    run_bits = plan.shape_[run_dimension - 1] * stride;
    begin_bits = range.start * stride;
    if (begin_bits % 8 != 0) return MisalignedError(dtype, begin_bits);
  }
  if (run_bits % 8 != 0) return MisalignedError(dtype, begin_bits + run_bits);
  plan.run_bytes_ = run_bits / 8;
  plan.run_count_ = 1;
  uint64_t span_bytes = plan.run_bytes_;  // from the first run's begin to the last one's end
  for (size_t i = 0; i + 1 < run_dimension; ++i) {
    const uint64_t count = plan.shape_[i];
    const uint64_t offset_bits = full[i].start * strides[i];
    // As the reference: every dimension's own offset must be whole bytes, not only their sum.
    if (offset_bits % 8 != 0) return MisalignedError(dtype, offset_bits);
    begin_bits += offset_bits;
    if (count == 1) continue;
    if (strides[i] % 8 != 0) return MisalignedError(dtype, offset_bits + strides[i]);
    const uint64_t stride_bytes = strides[i] / 8;
    span_bytes += (count - 1) * stride_bytes;
    plan.run_count_ *= count;
    if (!plan.outer_.empty() && plan.outer_.back().stride_bytes == stride_bytes * count) {
      // The dimension above goes on where this one ends: iterate over both as one.
      plan.outer_.back() = {plan.outer_.back().count * count, stride_bytes};
    } else {
      plan.outer_.push_back({count, stride_bytes});
    }
  }
  plan.file_begin_ = tensor_begin + begin_bits / 8;
  plan.file_end_ = plan.file_begin_ + span_bytes;
  return plan;
}

uint64_t SlicePlan::RunOffset(uint64_t run) const {
  uint64_t offset = file_begin_;
  for (size_t i = outer_.size(); i-- > 0;) {
    offset += run % outer_[i].count * outer_[i].stride_bytes;
    run /= outer_[i].count;
  }
  return offset;
}

void SlicePlan::ForEachRun(uint64_t first_run, uint64_t last_run,
                           const std::function<void(uint64_t file_offset)>& visit) const {
  CHECK(first_run <= last_run && last_run <= run_count_);
  if (outer_.empty()) {
    if (first_run < last_run) visit(file_begin_);
    return;
  }
  // Row by row of the fastest dimension, so that a run costs an addition and not a division.
  const OuterDimension& inner = outer_.back();
  uint64_t run = first_run;
  while (run < last_run) {
    const uint64_t row_end = std::min(last_run, run - run % inner.count + inner.count);
    uint64_t offset = RunOffset(run);
    for (; run < row_end; ++run, offset += inner.stride_bytes) visit(offset);
  }
}

}  // namespace forestage
