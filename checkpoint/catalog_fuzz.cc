// CatalogView on any bytes: what FromBytes accepts can be used up to the last accessor, and its
// names can be resolved by any index.
//
// An input that begins with an even byte is a catalog; one that begins with an odd byte changes a
// sound catalog, byte by byte, so that the fuzzer gets behind the first checks.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/name_resolution.h"
#include "common/check.h"

namespace forestage {
namespace {

uint64_t SumOf(absl::string_view text) {
  uint64_t sum = 0;
  for (const char c : text) sum += static_cast<unsigned char>(c);
  return sum;
}

uint64_t TouchShards(const CatalogView& view) {
  uint64_t sum = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < view.shard_count(); ++i) {
    const ShardEntryView shard = view.shard(i);
    sum += SumOf(shard.name) + shard.digest[0];
    bytes += shard.bytes;
    CHECK(uint64_t{shard.first_tensor} + shard.tensor_count <= view.tensor_count());
    const auto metadata = view.metadata(i);
    if (!metadata.has_value()) continue;
    for (const auto& [key, value] : *metadata) sum += SumOf(key) + SumOf(value);
  }
  CHECK(bytes == view.total_bytes());
  return sum;
}

uint64_t TouchTensors(const CatalogView& view) {
  uint64_t sum = 0;
  for (size_t i = 0; i < view.tensor_count(); ++i) {
    const TensorEntryView tensor = view.tensor(i);
    sum += SumOf(tensor.name);
    for (const uint64_t dimension : tensor.shape) sum += dimension;
    CHECK(tensor.begin <= tensor.end && tensor.end <= view.shard(tensor.shard_index).bytes);
    CHECK(DtypeBits(tensor.dtype) > 0);
    const std::optional<size_t> found = view.Find(tensor.name);
    CHECK(found.has_value() && view.tensor_name(*found) == tensor.name);
    const auto [first, last] = view.PrefixRange(tensor.name);
    CHECK(first < last && view.tensor_name(view.alphabetical(first)) == tensor.name);
    CHECK(view.has_repeated_names() || (*found == i && view.alphabetical(first) == i));
  }
  return sum;
}

CatalogShard ShardOf(std::string name, absl::string_view text, uint64_t data_bytes) {
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(text.data()),
                                          text.size());
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(bytes, 8 + text.size() + data_bytes, name);
  CHECK(header.ok());
  return {std::move(name), 1, *std::move(header)};
}

const std::vector<std::byte>& SoundCatalog() {
  static const auto* const kCatalog = [] {
    const std::vector<CatalogShard> shards = {
        ShardOf("one", R"({"__metadata__":{"a":"1","b":"2"},
                "w.1":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
                "w.10":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})",
                26),
        ShardOf("two", R"({"":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2),
        // Names that an index would have to choose between.
        ShardOf("three", R"({"w.1":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                "":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                3)};
    return new std::vector<std::byte>(BuildCatalog(shards).value());
  }();
  return *kCatalog;
}

// Three bytes are a place and a value.
std::vector<std::byte> ChangedCatalog(absl::Span<const uint8_t> changes) {
  std::vector<std::byte> catalog = SoundCatalog();
  for (; changes.size() >= 3; changes.remove_prefix(3)) {
    const size_t place = (size_t{changes[0]} << 8 | changes[1]) % catalog.size();
    catalog[place] = static_cast<std::byte>(changes[2]);
  }
  return catalog;
}

// Resolves names by an index over these tensors: a byte of `choices` says which shard the index
// names for a tensor, or that it does not have it.
void ResolveByAnyIndex(const CatalogView& view, absl::Span<const uint8_t> choices) {
  FileSelection selection;
  selection.directory = "d";
  selection.index_name = "i";
  for (size_t i = 0; i < view.shard_count(); ++i) {
    selection.index.shards.emplace_back(view.shard(i).name);
  }
  selection.index.shards.push_back("not there");
  for (size_t i = 0; i < view.tensor_count() && i < choices.size(); ++i) {
    if (choices[i] % 4 == 0) continue;
    selection.index.entries.push_back(
        {.tensor = view.tensor_name(i),
         .shard = static_cast<uint32_t>(choices[i] % selection.index.shards.size())});
  }
  const absl::StatusOr<std::vector<uint32_t>> ignored = ResolveNames(selection, view);
  if (!ignored.ok()) return;
  const std::vector<std::byte> bytes = BuildCatalogWithout(view, *ignored);
  const absl::StatusOr<CatalogView> served = CatalogView::FromBytes(bytes);
  CHECK(served.ok() && !served->has_repeated_names());
  CHECK(served->tensor_count() + ignored->size() == view.tensor_count());
}

}  // namespace
}  // namespace forestage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return -1;
  const absl::Span<const uint8_t> rest(bytes + 1, size - 1);
  std::vector<std::byte> catalog;
  if (bytes[0] % 2 == 0) {
    const auto* begin = reinterpret_cast<const std::byte*>(rest.data());
    catalog.assign(begin, begin + rest.size());
  } else {
    catalog = forestage::ChangedCatalog(rest);
  }
  const auto view = forestage::CatalogView::FromBytes(catalog);
  if (!view.ok()) return 0;
  volatile uint64_t sum = forestage::TouchShards(*view) + forestage::TouchTensors(*view);
  (void)sum;
  if (view->shard_count() <= 16) forestage::ResolveByAnyIndex(*view, rest);
  return 0;
}
