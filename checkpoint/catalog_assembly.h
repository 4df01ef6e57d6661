// A checkpoint's catalog from the headers of its shards, or all that is wrong with it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "checkpoint/catalog.h"
#include "checkpoint/file_selection.h"

namespace forestage {

// A tensor that is not served, since the index names another shard for its name.
struct IgnoredCopy {
  std::string tensor;
  // That holds the copy.
  std::string shard;
  std::string served_from;
  // In dtype or shape from what is served.
  bool differs = false;
};

struct AssembledCatalog {
  // What `view` looks at.
  std::shared_ptr<const std::vector<std::byte>> bytes;
  CatalogView view;
  // In file order.
  std::vector<IgnoredCopy> ignored_copies;
};

// A shard's header, or why it cannot be had.
using ShardReading = absl::StatusOr<CatalogShard>;

// Of the selected shards in their order. Errors: what FaultsOf says, together (see JoinErrors);
// RESOURCE_EXHAUSTED as BuildCatalog.
absl::StatusOr<AssembledCatalog> AssembleCatalog(const FileSelection& selection,
                                                 std::vector<ShardReading> shards);

// All that is wrong: what is wrong with shards, in order, then what is wrong with the names in
// those that are sound (see ResolveNames). Shards of which nothing is known may be left out.
std::vector<absl::Status> FaultsOf(const FileSelection& selection,
                                   std::vector<ShardReading> shards);

}  // namespace forestage
