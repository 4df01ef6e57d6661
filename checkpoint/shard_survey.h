// Headers of a checkpoint's shards, by their paths.
#pragma once

#include <vector>

#include "absl/types/span.h"

#include "checkpoint/catalog_assembly.h"
#include "checkpoint/file_selection.h"

namespace forestage {

// Opens these files and reads their headers, in a few threads; in the order of the files. Asks the
// kernel for no read-ahead, so that data stays as cold as it was. Never hangs on a FIFO; blocks on
// the file system.
std::vector<ShardReading> ReadShards(absl::Span<const SelectedShard> shards);

}  // namespace forestage
