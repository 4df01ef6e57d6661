// Memory that a rank keeps its tensors in.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace forestage {

// One reservation, handed out part by part and given back as a whole: as engines do that know what
// they will hold. Huge pages where the system has them, which only come as they are written.
// Movable. Not thread-safe.
class OwnMemory {
 public:
  // Each part begins at a multiple of this.
  static constexpr uint64_t kAlignment = 64;

  // An empty one.
  OwnMemory() = default;
  // For `parts` parts of `bytes` bytes together. RESOURCE_EXHAUSTED and others: the system's error.
  static absl::StatusOr<OwnMemory> Reserve(uint64_t bytes, uint64_t parts);

  OwnMemory(OwnMemory&& other) noexcept;
  OwnMemory& operator=(OwnMemory&& other) noexcept;
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;
  ~OwnMemory();

  // The next part. Requires: it was reserved.
  absl::Span<std::byte> Take(uint64_t bytes);

 private:
  OwnMemory(std::byte* address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  void Release();

  std::byte* address_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace forestage
