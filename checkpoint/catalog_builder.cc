// BuildCatalog and BuildCatalogWithout of catalog.h.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

#include "checkpoint/catalog.h"
#include "checkpoint/catalog_layout.h"
#include "common/check.h"

namespace forestage {
namespace {

// A tensor with the shard it stands in.
struct PlacedTensor {
  const HeaderTensor* tensor;
  uint32_t shard_index;
};

void UpdateWithNumber(Sha256* sha256, uint64_t number) {
  std::byte bytes[8];
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>((number >> (8 * i)) & 0xFF);
  sha256->Update(bytes);
}

CheckpointSignature SignatureOf(absl::Span<const CatalogShard> shards) {
  constexpr absl::string_view kDomain = "forestage checkpoint signature 1";
  Sha256 sha256;
  sha256.Update(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(kDomain.data()), kDomain.size()));
  UpdateWithNumber(&sha256, shards.size());
  for (const CatalogShard& shard : shards) {
    UpdateWithNumber(&sha256, shard.name.size());
    sha256.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(shard.name.data()),
                                      shard.name.size()));
    UpdateWithNumber(&sha256, shard.header.file_bytes);
    UpdateWithNumber(&sha256, static_cast<uint64_t>(shard.mtime_ns));
    sha256.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(shard.header.digest.data()),
                            shard.header.digest.size()));
  }
  return sha256.Finish();
}

// File-order indexes sorted by name, then by file order.
std::vector<uint32_t> AlphabeticalOrder(absl::Span<const PlacedTensor> tensors) {
  std::vector<uint32_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(), [tensors](uint32_t a, uint32_t b) {
    const int compared = tensors[a].tensor->name.compare(tensors[b].tensor->name);
    return compared != 0 ? compared < 0 : a < b;
  });
  return order;
}

// Lays the records out in one run of bytes whose size is known beforehand.
class CatalogWriter {
 public:
  CatalogWriter(absl::Span<const CatalogShard> shards, absl::Span<const PlacedTensor> tensors)
      : shards_(shards), tensors_(tensors) {}

  std::vector<std::byte> Write(absl::Span<const uint32_t> alphabetical) {
    const CatalogHeader header = Header();
    bytes_.resize(layout_.end);
    Put(0, header);
    WriteShards();
    WriteTensors();
    if (!alphabetical.empty()) {
      std::memcpy(bytes_.data() + layout_.alphabetical, alphabetical.data(),
                  alphabetical.size() * sizeof(uint32_t));
    }
    CHECK(next_string_ == header.string_bytes);
    return std::move(bytes_);
  }

 private:
  CatalogHeader Header() {
    CatalogHeader header = {};
    std::memcpy(header.magic, kCatalogMagic, sizeof(kCatalogMagic));
    header.version = kCatalogVersion;
    header.header_bytes = sizeof(CatalogHeader);
    header.shard_count = static_cast<uint32_t>(shards_.size());
    header.tensor_count = static_cast<uint32_t>(tensors_.size());
    for (const PlacedTensor& placed : tensors_) {
      header.dimension_count += placed.tensor->shape.size();
      header.string_bytes += placed.tensor->name.size();
    }
    for (const CatalogShard& shard : shards_) {
      header.string_bytes += shard.name.size();
      header.total_bytes += shard.header.file_bytes;
      if (!shard.header.metadata.has_value()) continue;
      header.metadata_count += shard.header.metadata->size();
      for (const auto& [key, value] : *shard.header.metadata) {
        header.string_bytes += key.size() + value.size();
      }
    }
    const CheckpointSignature signature = SignatureOf(shards_);
    std::memcpy(header.signature, signature.data(), signature.size());
    const std::optional<CatalogLayout> layout = CatalogLayout::Of(header);
    CHECK(layout.has_value());
    layout_ = *layout;
    header.catalog_bytes = layout_.end;
    return header;
  }

  void WriteShards() {
    uint32_t first_tensor = 0;
    uint64_t first_metadata = 0;
    for (size_t i = 0; i < shards_.size(); ++i) {
      const SafetensorsHeader& header = shards_[i].header;
      ShardRecord record = {};
      record.name = PutString(shards_[i].name);
      record.bytes = header.file_bytes;
      record.mtime_ns = shards_[i].mtime_ns;
      record.data_begin = header.data_begin;
      std::memcpy(record.digest, header.digest.data(), header.digest.size());
      record.first_tensor = first_tensor;
      record.tensor_count = static_cast<uint32_t>(header.tensors.size());
      record.first_metadata = first_metadata;
      record.has_metadata = header.metadata.has_value() ? 1 : 0;
      if (header.metadata.has_value()) {
        record.metadata_count = static_cast<uint32_t>(header.metadata->size());
        for (const auto& [key, value] : *header.metadata) {
          // One after the other: the order of arguments is the compiler's.
          const StringRecord key_record = PutString(key);
          Put(layout_.metadata + first_metadata * sizeof(MetadataRecord),
              MetadataRecord{key_record, PutString(value)});
          ++first_metadata;
        }
      }
      Put(layout_.shards + i * sizeof(ShardRecord), record);
      first_tensor += record.tensor_count;
    }
  }

  void WriteTensors() {
    uint64_t first_dimension = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const HeaderTensor& tensor = *tensors_[i].tensor;
      TensorRecord record = {};
      record.name = PutString(tensor.name);
      record.begin = tensor.begin;
      record.end = tensor.end;
      record.first_dimension = first_dimension;
      record.rank = static_cast<uint32_t>(tensor.shape.size());
      record.shard_index = tensors_[i].shard_index;
      record.dtype = static_cast<uint32_t>(tensor.dtype);
      Put(layout_.tensors + i * sizeof(TensorRecord), record);
      for (const uint64_t dimension : tensor.shape) {
        Put(layout_.dimensions + first_dimension * sizeof(uint64_t), dimension);
        ++first_dimension;
      }
    }
  }

  StringRecord PutString(const std::string& text) {
    if (!text.empty())
      std::memcpy(bytes_.data() + layout_.strings + next_string_, text.data(), text.size());
    const StringRecord record = {next_string_, text.size()};
    next_string_ += text.size();
    return record;
  }

  template <typename Record>
  void Put(uint64_t offset, const Record& record) {
    CHECK(offset + sizeof(record) <= bytes_.size());
    std::memcpy(bytes_.data() + offset, &record, sizeof(record));
  }

  const absl::Span<const CatalogShard> shards_;
  const absl::Span<const PlacedTensor> tensors_;
  CatalogLayout layout_;
  std::vector<std::byte> bytes_;
  uint64_t next_string_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::byte>> BuildCatalog(absl::Span<const CatalogShard> shards) {
  constexpr uint64_t kCountMax = std::numeric_limits<uint32_t>::max();
  uint64_t tensor_count = 0;
  uint64_t total_bytes = 0;
  for (const CatalogShard& shard : shards) {
    tensor_count += shard.header.tensors.size();
    if (__builtin_add_overflow(total_bytes, shard.header.file_bytes, &total_bytes)) {
      return absl::ResourceExhaustedError("the shards have more than 2^64 - 1 bytes");
    }
  }
  if (tensor_count > kCountMax || shards.size() > kCountMax) {
    return absl::ResourceExhaustedError(absl::StrCat(tensor_count, " tensors in ", shards.size(),
                                                     " shards; a catalog holds ", kCountMax,
                                                     " of each"));
  }
  std::vector<PlacedTensor> tensors;
  tensors.reserve(tensor_count);
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const HeaderTensor& tensor : shards[i].header.tensors) {
      tensors.push_back({&tensor, static_cast<uint32_t>(i)});
    }
  }
  return CatalogWriter(shards, tensors).Write(AlphabeticalOrder(tensors));
}

std::vector<std::byte> BuildCatalogWithout(const CatalogView& catalog,
                                           absl::Span<const uint32_t> tensor_indexes) {
  std::vector<CatalogShard> shards(catalog.shard_count());
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardEntryView entry = catalog.shard(i);
    shards[i].name = std::string(entry.name);
    shards[i].mtime_ns = entry.mtime_ns;
    SafetensorsHeader& header = shards[i].header;
    header.data_begin = entry.data_begin;
    header.file_bytes = entry.bytes;
    header.digest = entry.digest;
    if (const auto metadata = catalog.metadata(i); metadata.has_value()) {
      header.metadata.emplace(metadata->begin(), metadata->end());
    }
    for (uint32_t index = entry.first_tensor; index < entry.first_tensor + entry.tensor_count;
         ++index) {
      if (std::binary_search(tensor_indexes.begin(), tensor_indexes.end(), index)) continue;
      const TensorEntryView tensor = catalog.tensor(index);
      header.tensors.push_back({.name = std::string(tensor.name),
                                .dtype = tensor.dtype,
                                .shape = {tensor.shape.begin(), tensor.shape.end()},
                                .begin = tensor.begin,
                                .end = tensor.end});
    }
  }
  absl::StatusOr<std::vector<std::byte>> bytes = BuildCatalog(shards);
  CHECK(bytes.ok());
  return *std::move(bytes);
}

}  // namespace forestage
