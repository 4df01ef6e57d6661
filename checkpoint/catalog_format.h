// The bytes of a catalog, described in docs/catalog_format.md. All numbers are little-endian, all
// records a multiple of 8 bytes, the whole is 8-byte aligned. The sections follow each other in the
// order in which they stand here, without gaps, so that their places follow from the counts:
//
//   CatalogHeader
//   ShardRecord[shard_count]            in natural order of names
//   TensorRecord[tensor_count]          in file order
//   uint64_t[dimension_count]           the shapes, tensor after tensor
//   uint32_t[tensor_count], padded to 8 the alphabetical index: file-order indexes sorted by name
//   MetadataRecord[metadata_count]      shard after shard, each sorted by key
//   char[string_bytes], padded to 8     names, keys and values, not terminated
#pragma once

#include <bit>
#include <cstdint>

namespace forestage {

static_assert(std::endian::native == std::endian::little,
              "catalogs are little-endian and are read in place");

inline constexpr char kCatalogMagic[8] = {'F', 'S', 'T', 'G', 'C', 'A', 'T', '\n'};
inline constexpr uint32_t kCatalogVersion = 1;

struct CatalogHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;  // of this record
  uint64_t catalog_bytes;
  uint32_t shard_count;
  uint32_t tensor_count;
  uint64_t dimension_count;
  uint64_t metadata_count;
  uint64_t string_bytes;
  uint64_t total_bytes;  // of all shard files
  uint8_t signature[32];
};
static_assert(sizeof(CatalogHeader) == 96);

// A run of the strings section.
struct StringRecord {
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(StringRecord) == 16);

struct ShardRecord {
  StringRecord name;
  uint64_t bytes;
  int64_t mtime_ns;
  uint64_t data_begin;
  uint8_t digest[32];
  uint32_t first_tensor;
  uint32_t tensor_count;
  uint64_t first_metadata;
  uint32_t metadata_count;
  uint32_t has_metadata;  // 1 or 0; 1 with a count of 0 is an empty __metadata__
};
static_assert(sizeof(ShardRecord) == 96);

struct TensorRecord {
  StringRecord name;
  uint64_t begin;
  uint64_t end;
  uint64_t first_dimension;
  uint32_t rank;
  uint32_t shard_index;
  uint32_t dtype;
  uint32_t reserved;  // 0
};
static_assert(sizeof(TensorRecord) == 56);

struct MetadataRecord {
  StringRecord key;
  StringRecord value;
};
static_assert(sizeof(MetadataRecord) == 32);

}  // namespace forestage
