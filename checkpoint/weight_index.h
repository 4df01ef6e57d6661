// Reader of the index files of sharded checkpoints (model.safetensors.index.json).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "checkpoint/file_selection.h"
#include "checkpoint/offender_list.h"

namespace forestage {

// An index of 150,000 tensors has 15 MB.
inline constexpr uint64_t kIndexBytesMax = 100'000'000;

struct ParsedWeightIndex {
  WeightIndex index;
  // What is wrong with single entries, all of it: values that are no strings; names of shards that
  // are no file names (see IsFileName), whose entries are in the index all the same. Empty when
  // they are sound; else the index must be refused.
  std::string faults;
};

// The weight_map of an index. INVALID_ARGUMENT for what cannot be read as one: broken JSON; no
// weight_map, or two, or an empty one; says what the text is instead, where that can be seen. Keys
// held twice are left to ResolveNames, which finds them in passing. `owner` holds the text, which
// does not change; the index keeps it.
absl::StatusOr<ParsedWeightIndex> ParseWeightIndex(absl::string_view text,
                                                   std::shared_ptr<const void> owner,
                                                   absl::string_view index_name);

// Whether a name is one of a file in a directory: no path that leads elsewhere.
bool IsFileName(absl::string_view name);

// Every key that an index has more than once.
OffenderList RepeatedKeys(const WeightIndex& index);

}  // namespace forestage
