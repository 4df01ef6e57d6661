#include "client/cli/rank_plan.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/units.h"

namespace forestage {
namespace {

// File-order indexes of a shard's tensors by name.
std::vector<size_t> AlphabeticalInShard(const Catalog& catalog, size_t shard_index) {
  const ShardInfo shard = catalog.shard(shard_index);
  std::vector<size_t> indexes(shard.tensor_count);
  std::iota(indexes.begin(), indexes.end(), shard.first_tensor);
  std::sort(indexes.begin(), indexes.end(),
            [&](size_t a, size_t b) { return catalog.tensor(a).name < catalog.tensor(b).name; });
  return indexes;
}

uint64_t BytesOfRows(const TensorInfo& tensor, const RowPart& part) {
  if (part.first == part.last) return 0;
  // Exact for sub-byte types too: cuts are at bytes.
  const auto bits = static_cast<unsigned __int128>(tensor.bytes()) * 8;
  return static_cast<uint64_t>(bits / tensor.shape[0] * (part.last - part.first) / 8);
}

}  // namespace

RowPart RowPartOf(absl::Span<const uint64_t> shape, uint32_t dtype_bits, uint32_t rank,
                  uint32_t ranks) {
  CHECK(rank < ranks);
  if (shape.empty()) return {};
  const uint64_t rows = shape[0];
  const uint64_t share = DivideRoundingUp(rows, ranks);
  // Only the remainder by 8 matters, which survives an overflow.
  uint64_t share_bits = share * dtype_bits;
  for (uint64_t dimension : shape.subspan(1)) share_bits *= dimension;
  if (share < rows && share_bits % 8 != 0)
    return {.kind = RowPart::Kind::kWhole, .uncuttable = true};
  const bool beyond = rank > 0 && share > rows / rank;
  const uint64_t first = beyond ? rows : std::min(rows, rank * share);
  const uint64_t last = first + std::min(share, rows - first);
  return {.kind = RowPart::Kind::kRows, .first = first, .last = last};
}

RankPlan PlanRank(const Catalog& catalog, const RankOptions& options) {
  RankPlan plan;
  for (size_t shard = 0; shard < catalog.shard_count(); ++shard) {
    for (size_t index : AlphabeticalInShard(catalog, shard)) {
      const TensorInfo tensor = catalog.tensor(index);
      PlannedSlice slice{.tensor_index = index, .ranges = {}, .bytes = tensor.bytes()};
      if (options.share == Share::kRows) {
        const RowPart part =
            RowPartOf(tensor.shape, tensor.dtype_bits, options.rank, options.ranks);
        if (part.uncuttable) plan.uncuttable.emplace_back(tensor.name);
        if (part.kind == RowPart::Kind::kRows) {
          slice.ranges.push_back({.start = part.first, .stop = part.last});
          slice.bytes = BytesOfRows(tensor, part);
        }
      }
      plan.bytes += slice.bytes;
      plan.slices.push_back(std::move(slice));
    }
  }
  return plan;
}

std::vector<ChosenSlice> DemandOf(const RankPlan& plan) {
  std::vector<ChosenSlice> demand;
  demand.reserve(plan.slices.size());
  for (const PlannedSlice& slice : plan.slices) {
    demand.push_back({.tensor_index = slice.tensor_index, .ranges = slice.ranges});
  }
  return demand;
}

}  // namespace forestage
