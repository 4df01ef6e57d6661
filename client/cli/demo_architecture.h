// Names and shapes of real architectures, scaled to a wanted size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/output.h"

namespace forestage {

enum class DemoArchitecture {
  kLlama,    // dense: scaled from Llama 3 8B
  kMixtral,  // experts and a router: scaled from Mixtral 8x7B
};

// Less does not hold one layer.
inline constexpr uint64_t kDemoBytesMin = 1024 * 1024;
inline constexpr uint64_t kDemoBytesMax = uint64_t{16} << 40;

// All tensors are BF16.
struct DemoTensor {
  std::string name;
  std::vector<uint64_t> shape;
};
uint64_t DemoTensorBytes(const DemoTensor& tensor);

struct DemoModel {
  // In the order of the model: embedding, layers, head.
  std::vector<DemoTensor> tensors;
  // config.json as the `transformers` package writes it.
  Json config;
};

// A model whose tensors have `bytes` bytes within 2 %. INVALID_ARGUMENT outside kDemoBytesMin ..
// kDemoBytesMax.
absl::StatusOr<DemoModel> MakeDemoModel(DemoArchitecture architecture, uint64_t bytes);

// Deals tensors to `shard_count` shards of about equal bytes, in order, none empty: the indexes of
// each shard's tensors. INVALID_ARGUMENT for 0 shards or more shards than tensors.
absl::StatusOr<std::vector<std::vector<size_t>>> DealToShards(
    const std::vector<DemoTensor>& tensors, uint64_t shard_count);

}  // namespace forestage
