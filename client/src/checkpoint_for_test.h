// Checkpoints in temporary directories, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "common/temporary_directory_for_test.h"

namespace forestage {

struct TensorForTest {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<std::byte> bytes;
};

// `count` bytes that differ from place to place and from seed to seed.
std::vector<std::byte> RandomBytes(size_t count, uint64_t seed);

// Writes a safetensors file with these tensors in this order. `lead_bytes` more spaces in the
// header shift all data.
void WriteShard(const std::string& path, absl::Span<const TensorForTest> tensors,
                size_t lead_bytes = 0);

// A checkpoint of `shards` files (model-00001-of-...) with `tensors` U8 tensors of `rows` x
// `columns` in each, named "layer.<shard>.<index>".
class CheckpointForTest {
 public:
  struct Options {
    size_t shards = 2;
    size_t tensors = 3;
    uint64_t rows = 64;
    uint64_t columns = 1024;
    uint64_t seed = 1;
  };
  explicit CheckpointForTest(const Options& options);

  const std::string& directory() const { return directory_.path(); }
  std::string ShardPath(size_t index) const;
  // Drops its shards from the page cache; pages that somebody maps stay.
  void MakeCold() const;
  // What each tensor must be.
  const std::map<std::string, std::vector<std::byte>>& tensors() const { return tensors_; }

 private:
  const Options options_;
  TemporaryDirectoryForTest directory_{kDiskForTest};
  std::map<std::string, std::vector<std::byte>> tensors_;
};

}  // namespace forestage
