// Reader of the index files of sharded checkpoints (model.safetensors.index.json).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "checkpoint/file_selection.h"

namespace forestage {

// An index of 150,000 tensors has 15 MB.
inline constexpr uint64_t kIndexBytesMax = 100'000'000;

// The weight_map of an index. INVALID_ARGUMENT lists everything that is wrong of one kind: broken
// JSON; no weight_map, or two; values that are no strings; shard names that lead out of the
// directory; beside those, keys held twice. Those alone are left to CheckIndexAgainstCatalog, which
// finds them in passing. `owner` holds the text, which does not change; the index keeps it.
absl::StatusOr<WeightIndex> ParseWeightIndex(absl::string_view text,
                                             std::shared_ptr<const void> owner,
                                             absl::string_view index_name);

}  // namespace forestage
