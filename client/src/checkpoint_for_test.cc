#include "client/src/checkpoint_for_test.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "common/check.h"
#include "common/unique_fd.h"

namespace forestage {

std::vector<std::byte> RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, count - i));
  }
  return bytes;
}

void WriteShard(const std::string& path, absl::Span<const TensorForTest> tensors,
                size_t lead_bytes) {
  std::vector<std::string> entries;
  uint64_t offset = 0;
  for (const TensorForTest& tensor : tensors) {
    entries.push_back(absl::StrFormat(R"("%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]})",
                                      tensor.name, tensor.dtype, absl::StrJoin(tensor.shape, ","),
                                      offset, offset + tensor.bytes.size()));
    offset += tensor.bytes.size();
  }
  const std::string header =
      absl::StrCat("{", absl::StrJoin(entries, ","), "}", std::string(lead_bytes, ' '));
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const TensorForTest& tensor : tensors) {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
  file.close();
  CHECK(file.good());
}

CheckpointForTest::CheckpointForTest(const Options& options) : options_(options) {
  for (size_t shard = 0; shard < options.shards; ++shard) {
    std::vector<TensorForTest> tensors;
    for (size_t i = 0; i < options.tensors; ++i) {
      TensorForTest tensor = {.name = absl::StrCat("layer.", shard, ".", i),
                              .dtype = "U8",
                              .shape = {options.rows, options.columns},
                              .bytes = RandomBytes(options.rows * options.columns,
                                                   options.seed * 1'000'003 + shard * 1'000 + i)};
      tensors_[tensor.name] = tensor.bytes;
      tensors.push_back(std::move(tensor));
    }
    WriteShard(ShardPath(shard), tensors);
  }
}

std::string CheckpointForTest::ShardPath(size_t index) const {
  return directory_.File(
      absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, options_.shards));
}

void CheckpointForTest::MakeCold() const {
  for (size_t shard = 0; shard < options_.shards; ++shard) {
    const UniqueFd fd(open(ShardPath(shard).c_str(), O_RDONLY | O_CLOEXEC));
    CHECK(fsync(fd.get()) == 0);
    CHECK(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
  }
}

}  // namespace forestage
