// Small safetensors checkpoints on disk, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "common/check.h"
#include "common/temporary_directory_for_test.h"
#include "daemon/staging/staged_checkpoint.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/shard_file.h"

namespace forestage {

struct TensorForTest {
  std::string name;
  uint64_t bytes = 0;
};

// The bytes of a safetensors file with these tensors (U8), in this order, of a known pattern.
inline std::vector<std::byte> SafetensorsForTest(absl::Span<const TensorForTest> tensors) {
  std::string header = "{";
  uint64_t offset = 0;
  for (const TensorForTest& tensor : tensors) {
    absl::StrAppend(&header, offset == 0 && header.size() == 1 ? "" : ",", "\"", tensor.name,
                    "\":{\"dtype\":\"U8\",\"shape\":[", tensor.bytes, "],\"data_offsets\":[",
                    offset, ",", offset + tensor.bytes, "]}");
    offset += tensor.bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  std::vector<std::byte> file(sizeof(header_bytes) + header_bytes);
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  std::memcpy(file.data() + sizeof(header_bytes), header.data(), header_bytes);
  const std::vector<std::byte> pattern = PatternForTest(offset);
  file.insert(file.end(), pattern.begin(), pattern.end());
  return file;
}

// Shards "shard-0", "shard-1", ... of `tensors_a_shard` tensors "tI.J" each, cold.
inline std::vector<std::string> WriteCheckpointForTest(const TemporaryDirectoryForTest& directory,
                                                       size_t shard_count, size_t tensors_a_shard,
                                                       uint64_t tensor_bytes) {
  std::vector<std::string> names;
  for (size_t shard = 0; shard < shard_count; ++shard) {
    std::vector<TensorForTest> tensors;
    for (size_t i = 0; i < tensors_a_shard; ++i) {
      tensors.push_back({.name = absl::StrCat("t", shard, ".", i), .bytes = tensor_bytes});
    }
    names.push_back(absl::StrCat("shard-", shard));
    WriteFileForTest(directory.File(names.back()), SafetensorsForTest(tensors));
    MakeColdForTest(directory.File(names.back()));
  }
  return names;
}

// As a client would send them.
inline std::vector<ReceivedShard> OpenShardsForTest(const TemporaryDirectoryForTest& directory,
                                                    absl::Span<const std::string> names) {
  std::vector<ReceivedShard> shards;
  for (const std::string& name : names) {
    UniqueFd fd = OpenForTest(directory.File(name));
    const absl::StatusOr<CacheIdentity> identity = CacheIdentityOf(fd.get());
    CHECK(identity.ok());
    shards.push_back({.name = name,
                      .size_bytes = identity->bytes,
                      .mtime_ns = identity->mtime_ns,
                      .fd = std::move(fd)});
  }
  return shards;
}

}  // namespace forestage
