// What a checkpoint holds: tensor name -> shard, byte range, dtype, shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace forestage {

class CatalogView;

struct ShardInfo {
  absl::string_view name = {};
  uint64_t bytes = 0;
  // Its tensors are [first_tensor, first_tensor + tensor_count) in file order.
  size_t first_tensor = 0;
  size_t tensor_count = 0;
};

struct TensorInfo {
  absl::string_view name = {};
  absl::string_view shard = {};
  // As in the file's header: "BF16", "F8_E4M3", ...
  absl::string_view dtype = {};
  // Bits of one element; 4 and 6 for sub-byte types.
  uint32_t dtype_bits = 0;
  // Logical elements in each dimension, C order; empty for a scalar.
  absl::Span<const uint64_t> shape = {};
  size_t shard_index = 0;
  // Bytes [begin, end) of the shard's file.
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

// The catalog of an open session. Immutable and thread-safe; what it returns is valid as long as
// it lives, and it may outlive its session.
//
// Tensors have an index in *file order*: shards in natural order, tensors by offset inside a shard.
class Catalog {
 public:
  // Keeps `owner`, which holds the bytes that `view` looks at. For this library's own use.
  Catalog(std::shared_ptr<const void> owner, const CatalogView& view);
  ~Catalog();

  size_t tensor_count() const;
  size_t shard_count() const;
  // Of all shard files.
  uint64_t total_bytes() const;

  // Requires: index < tensor_count(), index < shard_count().
  TensorInfo tensor(size_t index) const;
  ShardInfo shard(size_t index) const;

  // File-order index of the tensor of exactly this name.
  std::optional<size_t> Find(absl::string_view name) const;
  // File-order indexes of all tensors in alphabetical order, or of those whose name begins so.
  std::vector<size_t> Alphabetical(absl::string_view prefix = {}) const;
  // __metadata__ of a shard; nullopt when it has none. Requires: index < shard_count().
  std::optional<std::vector<std::pair<absl::string_view, absl::string_view>>> metadata(
      size_t shard_index) const;

 private:
  const std::shared_ptr<const void> owner_;
  const std::unique_ptr<const CatalogView> view_;
};

}  // namespace forestage
