// The catalog: tensor name -> shard, byte range, dtype, shape.
//
// A catalog is one flat run of bytes, built once by the daemon (or by a client on its own) and
// shared as a sealed memfd. docs/catalog_format.md and catalog_format.h describe the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "checkpoint/catalog_layout.h"
#include "checkpoint/dtype.h"
#include "checkpoint/safetensors_header.h"

namespace forestage {

// SHA-256 over the ordered (name, size, mtime, header digest) of the shards.
using CheckpointSignature = Sha256Digest;

// What a catalog is built from: one shard and its header.
struct CatalogShard {
  std::string name;
  int64_t mtime_ns = 0;
  SafetensorsHeader header;
};

struct ShardEntryView {
  absl::string_view name;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t data_begin = 0;
  Sha256Digest digest = {};
  // The shard's tensors are [first_tensor, first_tensor + tensor_count) in file order.
  uint32_t first_tensor = 0;
  uint32_t tensor_count = 0;
};

struct TensorEntryView {
  absl::string_view name;
  Dtype dtype = Dtype::kU8;
  absl::Span<const uint64_t> shape;
  uint32_t shard_index = 0;
  // Byte range in the shard's file.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Makes the bytes of a catalog. Shards keep their order. A name that several shards hold is there
// once for each: which one is meant the index says (name_resolution.h). RESOURCE_EXHAUSTED above
// 2^32 - 1 tensors.
absl::StatusOr<std::vector<std::byte>> BuildCatalog(absl::Span<const CatalogShard> shards);

// A checked view of a catalog's bytes, which must outlive it. Copyable, immutable, thread-safe.
// Indexes are in *file order*: shards in order, tensors by offset inside a shard.
class CatalogView {
 public:
  // Checks all that the accessors rely on, in one pass: whatever the bytes say, no accessor reads
  // outside them afterwards. INVALID_ARGUMENT says what is wrong. The bytes must not change (a
  // sealed memfd, or the caller's own memory) and be 8-byte aligned.
  static absl::StatusOr<CatalogView> FromBytes(absl::Span<const std::byte> bytes);

  size_t shard_count() const { return shard_count_; }
  size_t tensor_count() const { return tensor_count_; }
  uint64_t total_bytes() const;  // of all shard files
  CheckpointSignature signature() const;
  // Whether several shards hold a tensor of one name.
  bool has_repeated_names() const { return has_repeated_names_; }

  // Requires: index < shard_count().
  ShardEntryView shard(size_t index) const;
  // Requires: index < tensor_count().
  TensorEntryView tensor(size_t index) const;
  // Its name alone, for those who look at many. Requires: index < tensor_count().
  absl::string_view tensor_name(size_t index) const;
  // tensor(index).shard_index alone.
  uint32_t shard_of(size_t index) const;

  // File-order index of the tensor of this name; of any of them where names are repeated.
  std::optional<size_t> Find(absl::string_view name) const;
  // Tensors in alphabetical (byte) order, those of one name in file order: alphabetical(0) is the
  // file-order index of the first.
  // Requires: position < tensor_count().
  size_t alphabetical(size_t position) const;
  // [first, last) of alphabetical positions whose names begin with `prefix`.
  std::pair<size_t, size_t> PrefixRange(absl::string_view prefix) const;
  // __metadata__ of a shard as sorted (key, value) pairs; nullopt when it has none.
  std::optional<std::vector<std::pair<absl::string_view, absl::string_view>>> metadata(
      size_t shard_index) const;

 private:
  CatalogView(absl::Span<const std::byte> bytes, bool has_repeated_names);
  absl::string_view AlphabeticalName(size_t position) const {
    return tensor_name(alphabetical(position));
  }

  absl::Span<const std::byte> bytes_;
  // Of the header, which is read once: every query needs them.
  CatalogLayout layout_;
  size_t shard_count_ = 0;
  size_t tensor_count_ = 0;
  bool has_repeated_names_ = false;
};

// The same catalog without some tensors, given as ascending file-order indexes: what they cover of
// their shards is left as gaps.
std::vector<std::byte> BuildCatalogWithout(const CatalogView& catalog,
                                           absl::Span<const uint32_t> tensor_indexes);

}  // namespace forestage
