#include "forestage/catalog.h"

#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/dtype.h"

namespace forestage {

Catalog::Catalog(std::shared_ptr<const void> owner, const CatalogView& view)
    : owner_(std::move(owner)), view_(std::make_unique<const CatalogView>(view)) {}

Catalog::~Catalog() = default;

size_t Catalog::tensor_count() const { return view_->tensor_count(); }
size_t Catalog::shard_count() const { return view_->shard_count(); }
uint64_t Catalog::total_bytes() const { return view_->total_bytes(); }

TensorInfo Catalog::tensor(size_t index) const {
  const TensorEntryView entry = view_->tensor(index);
  return {.name = entry.name,
          .shard = view_->shard(entry.shard_index).name,
          .dtype = DtypeName(entry.dtype),
          .dtype_bits = DtypeBits(entry.dtype),
          .shape = entry.shape,
          .shard_index = entry.shard_index,
          .begin = entry.begin,
          .end = entry.end};
}

ShardInfo Catalog::shard(size_t index) const {
  const ShardEntryView entry = view_->shard(index);
  return {.name = entry.name,
          .bytes = entry.bytes,
          .first_tensor = entry.first_tensor,
          .tensor_count = entry.tensor_count};
}

std::optional<size_t> Catalog::Find(absl::string_view name) const { return view_->Find(name); }

AlphabeticalRange Catalog::WithPrefix(absl::string_view prefix) const {
  const auto [first, last] = view_->PrefixRange(prefix);
  return {.first = first, .last = last};
}

size_t Catalog::AlphabeticalIndex(size_t position) const { return view_->alphabetical(position); }

std::vector<size_t> Catalog::Alphabetical(absl::string_view prefix) const {
  const AlphabeticalRange range = WithPrefix(prefix);
  std::vector<size_t> indexes;
  indexes.reserve(range.size());
  for (size_t position = range.first; position < range.last; ++position) {
    indexes.push_back(AlphabeticalIndex(position));
  }
  return indexes;
}

std::optional<std::vector<std::pair<absl::string_view, absl::string_view>>> Catalog::metadata(
    size_t shard_index) const {
  return view_->metadata(shard_index);
}

}  // namespace forestage
