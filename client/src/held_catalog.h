// A checked catalog together with the memory that holds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/checkpoint_files.h"

#include "checkpoint/catalog.h"
#include "common/unique_fd.h"

namespace forestage {

// `view` looks at memory of `owner`. Copyable.
struct HeldCatalog {
  std::shared_ptr<const void> owner;
  CatalogView view;
  // Tensors that the daemon's catalog has beside these, as its ascending indexes: copies of which
  // the index of the checkpoint names another one. Empty without a daemon.
  std::vector<uint32_t> not_served_of_daemon;

  // The index of a tensor of `view` in the daemon's catalog.
  uint32_t IndexAtDaemon(size_t tensor_index) const;
};

// Reads and checks the headers of all shards, in parallel, and builds the catalog. Blocks on
// storage. INVALID_ARGUMENT lists every damaged shard, every tensor name held twice of which no
// index says which one is meant, and every entry of the index that its shard does not hold;
// UNAVAILABLE when a shard cannot be read.
absl::StatusOr<HeldCatalog> ReadNativeCatalog(const CheckpointFiles& files);

// Maps a catalog that the daemon made and checks everything that this process will rely on: that
// it can never change, that its bytes make sense, and that it speaks of these very files. Any
// error means: build your own.
absl::StatusOr<HeldCatalog> MapDaemonCatalog(const UniqueFd& fd, const CheckpointFiles& files);

}  // namespace forestage
