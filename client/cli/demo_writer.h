// Writes one shard of a demo checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cli/demo_architecture.h"

namespace forestage {

// The length field and header text of a safetensors file with these tensors, in this order, padded
// to 8 bytes as the reference writer does. Requires: sorted by name (all have one dtype).
std::string MakeSafetensorsHeader(absl::Span<const DemoTensor> tensors);

// Fills `bytes` with the bytes of a tensor from `offset` on: pseudo-random, the same in every run,
// others for every name. Every BF16 value is finite and below 2.
// Requires: offset and bytes.size() are multiples of 8, but for the end of the tensor.
void FillDemoBytes(absl::string_view tensor_name, uint64_t offset, absl::Span<std::byte> bytes);

// Creates `path` (which must not exist) and writes the shard through to the device. `advance` is
// called with the bytes of each piece; false stops the writing (CANCELLED). Errors name the path; a
// full disk is RESOURCE_EXHAUSTED. What was written stays.
absl::Status WriteDemoShard(const std::string& path, std::vector<DemoTensor> tensors,
                            const std::function<bool(uint64_t)>& advance);

// Creates `path`, which must not exist, with this text.
absl::Status WriteDemoText(const std::string& path, absl::string_view text);

}  // namespace forestage
