#include "checkpoint/catalog.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "checkpoint/catalog_layout.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

template <typename Record>
Record Load(absl::Span<const std::byte> bytes, uint64_t offset) {
  Record record;
  std::memcpy(&record, bytes.data() + offset, sizeof(record));
  return record;
}

// Requires: FromBytes has seen the header, or only its own fields are used.
CatalogHeader LoadHeader(absl::Span<const std::byte> bytes) {
  return Load<CatalogHeader>(bytes, 0);
}

CatalogLayout LayoutOf(absl::Span<const std::byte> bytes) {
  const std::optional<CatalogLayout> layout = CatalogLayout::Of(LoadHeader(bytes));
  CHECK(layout.has_value());
  return *layout;
}

absl::string_view StringAt(absl::Span<const std::byte> bytes, const CatalogLayout& layout,
                           const StringRecord& record) {
  return absl::string_view(
      reinterpret_cast<const char*>(bytes.data()) + layout.strings + record.offset, record.bytes);
}

template <typename... Pieces>
absl::Status Broken(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat("not a sound catalog: ", pieces...));
}

// Checks the sections of bytes whose header and size are sound.
class CatalogChecker {
 public:
  explicit CatalogChecker(absl::Span<const std::byte> bytes)
      : bytes_(bytes), header_(LoadHeader(bytes)), layout_(LayoutOf(bytes)) {}

  // Whether names are repeated.
  absl::StatusOr<bool> Check() const {
    RETURN_IF_ERROR(CheckShards());
    return CheckAlphabetical();
  }

 private:
  bool InStrings(const StringRecord& record) const {
    return record.offset <= header_.string_bytes &&
           record.bytes <= header_.string_bytes - record.offset;
  }

  absl::Status CheckShards() const {
    uint64_t next_tensor = 0;
    uint64_t next_metadata = 0;
    uint64_t next_dimension = 0;
    uint64_t total_bytes = 0;
    for (uint64_t i = 0; i < header_.shard_count; ++i) {
      const auto shard = Load<ShardRecord>(bytes_, layout_.shards + i * sizeof(ShardRecord));
      if (!InStrings(shard.name)) return Broken("the name of shard ", i, " lies outside");
      if (shard.first_tensor != next_tensor ||
          shard.tensor_count > header_.tensor_count - next_tensor) {
        return Broken("the tensors of shard ", i, " do not follow those of the one before");
      }
      if (shard.first_metadata != next_metadata ||
          shard.metadata_count > header_.metadata_count - next_metadata || shard.has_metadata > 1 ||
          (shard.has_metadata == 0 && shard.metadata_count != 0)) {
        return Broken("the metadata of shard ", i, " do not follow those of the one before");
      }
      if (shard.data_begin > shard.bytes)
        return Broken("the data of shard ", i, " begin behind its end");
      if (__builtin_add_overflow(total_bytes, shard.bytes, &total_bytes)) {
        return Broken("the shards have more than 2^64 - 1 bytes");
      }
      RETURN_IF_ERROR(CheckMetadata(shard, i));
      RETURN_IF_ERROR(CheckTensorsOf(shard, i, next_dimension));
      next_tensor += shard.tensor_count;
      next_metadata += shard.metadata_count;
    }
    if (next_tensor != header_.tensor_count) return Broken("tensors that belong to no shard");
    if (next_metadata != header_.metadata_count) return Broken("metadata that belong to no shard");
    if (next_dimension != header_.dimension_count) return Broken("shapes that belong to no tensor");
    if (total_bytes != header_.total_bytes) return Broken("the shards do not add up to the total");
    return absl::OkStatus();
  }

  absl::Status CheckMetadata(const ShardRecord& shard, uint64_t shard_index) const {
    absl::string_view previous;
    for (uint64_t i = 0; i < shard.metadata_count; ++i) {
      const auto record = Load<MetadataRecord>(
          bytes_, layout_.metadata + (shard.first_metadata + i) * sizeof(MetadataRecord));
      if (!InStrings(record.key) || !InStrings(record.value)) {
        return Broken("metadata of shard ", shard_index, " lie outside");
      }
      const absl::string_view key = StringAt(bytes_, layout_, record.key);
      if (i > 0 && key <= previous)
        return Broken("metadata of shard ", shard_index, " out of order");
      previous = key;
    }
    return absl::OkStatus();
  }

  // Moves `next_dimension` on by their shapes.
  absl::Status CheckTensorsOf(const ShardRecord& shard, uint64_t shard_index,
                              uint64_t& next_dimension) const {
    uint64_t previous_end = shard.data_begin;
    for (uint64_t i = shard.first_tensor; i < uint64_t{shard.first_tensor} + shard.tensor_count;
         ++i) {
      const TensorRecord tensor = LoadTensor(i);
      if (tensor.shard_index != shard_index) return Broken("tensor ", i, " is of another shard");
      if (tensor.begin < previous_end || tensor.end < tensor.begin) {
        return Broken("tensor ", i, " begins before the one before it ends");
      }
      previous_end = tensor.end;
      RETURN_IF_ERROR(CheckTensor(tensor, i, next_dimension));
      next_dimension += tensor.rank;
    }
    if (previous_end > shard.bytes)
      return Broken("the tensors of shard ", shard_index, " end behind it");
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const TensorRecord& tensor, uint64_t index,
                           uint64_t next_dimension) const {
    if (!InStrings(tensor.name)) return Broken("the name of tensor ", index, " lies outside");
    if (tensor.first_dimension != next_dimension ||
        tensor.rank > header_.dimension_count - next_dimension) {
      return Broken("the shape of tensor ", index, " does not follow the one before");
    }
    if (tensor.dtype >= kDtypeCount || tensor.reserved != 0) {
      return Broken("tensor ", index, " has an unknown dtype");
    }
    uint64_t bits = DtypeBits(static_cast<Dtype>(tensor.dtype));
    uint64_t elements = 1;
    bool overflow = false;
    for (uint32_t d = 0; d < tensor.rank; ++d) {
      const auto dimension =
          Load<uint64_t>(bytes_, layout_.dimensions + (next_dimension + d) * sizeof(uint64_t));
      overflow = overflow || __builtin_mul_overflow(elements, dimension, &elements);
    }
    overflow = overflow || __builtin_mul_overflow(bits, elements, &bits);
    if (overflow || bits % 8 != 0 || bits / 8 != tensor.end - tensor.begin) {
      return Broken("the shape of tensor ", index, " does not fit its range");
    }
    return absl::OkStatus();
  }

  // Ascending names, and ascending indexes of one name, also mean that every tensor is there once.
  absl::StatusOr<bool> CheckAlphabetical() const {
    bool repeated = false;
    absl::string_view previous;
    uint32_t previous_index = 0;
    for (uint64_t i = 0; i < header_.tensor_count; ++i) {
      PrefetchAlphabetical(i);
      const auto index = Load<uint32_t>(bytes_, layout_.alphabetical + i * sizeof(uint32_t));
      if (index >= header_.tensor_count) return Broken("the alphabetical index names no tensor");
      const absl::string_view name = StringAt(bytes_, layout_, LoadTensor(index).name);
      const int compared = i > 0 ? name.compare(previous) : 1;
      if (compared < 0 || (compared == 0 && index <= previous_index)) {
        return Broken("the alphabetical index is out of order");
      }
      if (compared == 0 &&
          LoadTensor(index).shard_index == LoadTensor(previous_index).shard_index) {
        return Broken("a shard holds a name twice");
      }
      repeated = repeated || compared == 0;
      previous = name;
      previous_index = index;
    }
    return repeated;
  }

  // The alphabet goes criss-cross through records and names, which would be waited for one by one.
  // Requires: the places of all names are checked.
  void PrefetchAlphabetical(uint64_t position) const {
    constexpr uint64_t kRecordAhead = 16;
    constexpr uint64_t kNameAhead = 8;
    const auto record_at = [this](uint64_t ahead) -> const std::byte* {
      if (ahead >= header_.tensor_count) return nullptr;
      const auto index = Load<uint32_t>(bytes_, layout_.alphabetical + ahead * sizeof(uint32_t));
      if (index >= header_.tensor_count) return nullptr;
      return bytes_.data() + layout_.tensors + index * sizeof(TensorRecord);
    };
    if (const std::byte* record = record_at(position + kRecordAhead)) __builtin_prefetch(record);
    if (const std::byte* record = record_at(position + kNameAhead)) {
      static_assert(offsetof(TensorRecord, name) == 0 && offsetof(StringRecord, offset) == 0);
      uint64_t offset = 0;
      std::memcpy(&offset, record, sizeof(offset));
      const std::byte* name = bytes_.data() + layout_.strings + offset;
      __builtin_prefetch(name);
      __builtin_prefetch(name + 63);
    }
  }

  TensorRecord LoadTensor(uint64_t index) const {
    return Load<TensorRecord>(bytes_, layout_.tensors + index * sizeof(TensorRecord));
  }

  const absl::Span<const std::byte> bytes_;
  const CatalogHeader header_;
  const CatalogLayout layout_;
};

absl::Status CheckHeader(absl::Span<const std::byte> bytes) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 != 0)
    return Broken("its bytes are not aligned");
  if (bytes.size() < sizeof(CatalogHeader)) {
    return Broken(bytes.size(), " bytes, less than the ", sizeof(CatalogHeader), " of its header");
  }
  const CatalogHeader header = LoadHeader(bytes);
  if (std::memcmp(header.magic, kCatalogMagic, sizeof(kCatalogMagic)) != 0) {
    return Broken("it does not begin as one");
  }
  if (header.version != kCatalogVersion || header.header_bytes != sizeof(CatalogHeader)) {
    return Broken("version ", header.version, ", where this program knows ", kCatalogVersion);
  }
  const std::optional<CatalogLayout> layout = CatalogLayout::Of(header);
  if (!layout.has_value() || layout->end != bytes.size() || header.catalog_bytes != bytes.size()) {
    return Broken(bytes.size(), " bytes, which is not what its counts make");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CatalogView> CatalogView::FromBytes(absl::Span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckHeader(bytes));
  ASSIGN_OR_RETURN(const bool has_repeated_names, CatalogChecker(bytes).Check());
  return CatalogView(bytes, has_repeated_names);
}

CatalogView::CatalogView(absl::Span<const std::byte> bytes, bool has_repeated_names)
    : bytes_(bytes), layout_(LayoutOf(bytes)), has_repeated_names_(has_repeated_names) {
  const CatalogHeader header = LoadHeader(bytes);
  shard_count_ = header.shard_count;
  tensor_count_ = header.tensor_count;
}

uint64_t CatalogView::total_bytes() const { return LoadHeader(bytes_).total_bytes; }

CheckpointSignature CatalogView::signature() const {
  const CatalogHeader header = LoadHeader(bytes_);
  CheckpointSignature signature;
  std::memcpy(signature.data(), header.signature, signature.size());
  return signature;
}

ShardEntryView CatalogView::shard(size_t index) const {
  CHECK(index < shard_count_);
  const auto record = Load<ShardRecord>(bytes_, layout_.shards + index * sizeof(ShardRecord));
  ShardEntryView shard;
  shard.name = StringAt(bytes_, layout_, record.name);
  shard.bytes = record.bytes;
  shard.mtime_ns = record.mtime_ns;
  shard.data_begin = record.data_begin;
  std::memcpy(shard.digest.data(), record.digest, shard.digest.size());
  shard.first_tensor = record.first_tensor;
  shard.tensor_count = record.tensor_count;
  return shard;
}

TensorEntryView CatalogView::tensor(size_t index) const {
  CHECK(index < tensor_count_);
  const auto record = Load<TensorRecord>(bytes_, layout_.tensors + index * sizeof(TensorRecord));
  TensorEntryView tensor;
  tensor.name = StringAt(bytes_, layout_, record.name);
  tensor.dtype = static_cast<Dtype>(record.dtype);
  // The section is 8-byte aligned, as the whole is.
  tensor.shape =
      absl::MakeConstSpan(reinterpret_cast<const uint64_t*>(bytes_.data() + layout_.dimensions) +
                              record.first_dimension,
                          record.rank);
  tensor.shard_index = record.shard_index;
  tensor.begin = record.begin;
  tensor.end = record.end;
  return tensor;
}

absl::string_view CatalogView::tensor_name(size_t index) const {
  CHECK(index < tensor_count_);
  static_assert(offsetof(TensorRecord, name) == 0);
  return StringAt(bytes_, layout_,
                  Load<StringRecord>(bytes_, layout_.tensors + index * sizeof(TensorRecord)));
}

uint32_t CatalogView::shard_of(size_t index) const {
  CHECK(index < tensor_count_);
  return Load<uint32_t>(
      bytes_, layout_.tensors + index * sizeof(TensorRecord) + offsetof(TensorRecord, shard_index));
}

size_t CatalogView::alphabetical(size_t position) const {
  CHECK(position < tensor_count_);
  return Load<uint32_t>(bytes_, layout_.alphabetical + position * sizeof(uint32_t));
}

std::pair<size_t, size_t> CatalogView::PrefixRange(absl::string_view prefix) const {
  // First alphabetical position from `first` on whose name's first prefix.size() bytes are not
  // below the prefix (or, with `above`, are above it).
  const auto bound = [this, prefix](size_t first, bool above) {
    size_t last = tensor_count_;
    while (first < last) {
      const size_t middle = first + (last - first) / 2;
      const int compared = AlphabeticalName(middle).substr(0, prefix.size()).compare(prefix);
      if (compared < 0 || (above && compared == 0)) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  };
  const size_t first = bound(0, false);
  return {first, bound(first, true)};
}

std::optional<size_t> CatalogView::Find(absl::string_view name) const {
  size_t first = 0;
  size_t last = tensor_count_;
  while (first < last) {
    const size_t middle = first + (last - first) / 2;
    const size_t index = alphabetical(middle);
    const int compared = tensor_name(index).compare(name);
    if (compared == 0) return index;
    if (compared < 0) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<std::pair<absl::string_view, absl::string_view>>> CatalogView::metadata(
    size_t shard_index) const {
  CHECK(shard_index < shard_count_);
  const auto shard = Load<ShardRecord>(bytes_, layout_.shards + shard_index * sizeof(ShardRecord));
  if (shard.has_metadata == 0) return std::nullopt;
  std::vector<std::pair<absl::string_view, absl::string_view>> pairs;
  pairs.reserve(shard.metadata_count);
  for (uint64_t i = 0; i < shard.metadata_count; ++i) {
    const auto record = Load<MetadataRecord>(
        bytes_, layout_.metadata + (shard.first_metadata + i) * sizeof(MetadataRecord));
    pairs.emplace_back(StringAt(bytes_, layout_, record.key),
                       StringAt(bytes_, layout_, record.value));
  }
  return pairs;
}

}  // namespace forestage
