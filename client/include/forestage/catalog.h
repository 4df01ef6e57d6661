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

// Tensors that stand behind each other in alphabetical (byte) order: positions [first, last).
struct AlphabeticalRange {
  size_t first = 0;
  size_t last = 0;

  size_t size() const { return last - first; }
  bool empty() const { return first == last; }
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
  // The tensors whose names begin so, in alphabetical order; all of them for "". Two binary
  // searches, no allocation:
  //   const AlphabeticalRange range = catalog.WithPrefix("model.layers.7.");
  //   for (size_t position = range.first; position < range.last; ++position)
  //     Use(catalog.tensor(catalog.AlphabeticalIndex(position)));
  AlphabeticalRange WithPrefix(absl::string_view prefix) const;
  // File-order index of the tensor at this alphabetical position. Requires:
  // position < tensor_count().
  size_t AlphabeticalIndex(size_t position) const;
  // The same indexes at once.
  std::vector<size_t> Alphabetical(absl::string_view prefix = {}) const;
  // __metadata__ of a shard; nullopt when it has none. Requires: index < shard_count().
  std::optional<std::vector<std::pair<absl::string_view, absl::string_view>>> metadata(
      size_t shard_index) const;

 private:
  const std::shared_ptr<const void> owner_;
  const std::unique_ptr<const CatalogView> view_;
};

}  // namespace forestage
