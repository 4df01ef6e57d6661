// Which slices a rank of `forestage load` takes, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/cli/rank_options.h"

#include "forestage/catalog.h"
#include "forestage/session.h"

namespace forestage {

// Rows of dimension 0 that a rank takes of one tensor.
struct RowPart {
  enum class Kind {
    kWhole,  // a scalar, or a tensor that cannot be cut; `first` and `last` mean nothing
    kRows,   // none of them (first == last) when nothing is left for this rank
  };
  Kind kind = Kind::kWhole;
  uint64_t first = 0;
  uint64_t last = 0;
  // A rank's part would begin inside a byte, so every rank takes the whole tensor.
  bool uncuttable = false;
};

// Rank r takes rows [r * ceil(n / ranks), min(n, (r + 1) * ceil(n / ranks))).
// Requires: rank < ranks.
RowPart RowPartOf(absl::Span<const uint64_t> shape, uint32_t dtype_bits, uint32_t rank,
                  uint32_t ranks);

struct PlannedSlice {
  size_t tensor_index = 0;
  // Empty: the whole tensor.
  std::vector<Range> ranges;
  uint64_t bytes = 0;
};

struct RankPlan {
  // In the order in which engines read: files in natural order, names in alphabetical order inside
  // a file.
  std::vector<PlannedSlice> slices;
  // Of all slices.
  uint64_t bytes = 0;
  // Names of the tensors that are taken whole since a part would begin inside a byte.
  std::vector<std::string> uncuttable;
};

RankPlan PlanRank(const Catalog& catalog, const RankOptions& options);

// The plan as a session's demand.
std::vector<ChosenSlice> DemandOf(const RankPlan& plan);

}  // namespace forestage
