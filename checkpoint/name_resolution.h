// Which tensor a name means, and whether index and shards agree.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "checkpoint/catalog.h"
#include "checkpoint/file_selection.h"

namespace forestage {

// The index decides: of tensors of one name in several shards the one in the shard that it names is
// meant. Returns the others, which are not to be served, as ascending file-order indexes. Tensors
// that the index does not name are served all the same.
//
// The catalog may have some of the selected shards only, when the others are damaged; nothing is
// said of what those should hold. INVALID_ARGUMENT lists every tensor that the index looks for in a
// shard that does not hold it, every key that the index has twice, and every name in several
// shards of which no index says which one is meant.
absl::StatusOr<std::vector<uint32_t>> ResolveNames(const FileSelection& selection,
                                                   const CatalogView& catalog);

}  // namespace forestage
