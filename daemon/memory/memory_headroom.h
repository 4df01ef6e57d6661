// How much of a limit stays free for everybody else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// A constant value. The default is `auto`: a tenth of the limit, at least 1 GiB and at most 16 GiB,
// but never more than half of a small one.
class MemoryHeadroom {
 public:
  MemoryHeadroom() = default;
  // "auto", a size as ParseByteSize reads it, or "0%" to "90%".
  static std::optional<MemoryHeadroom> Parse(absl::string_view text);

  uint64_t BytesOf(uint64_t limit_bytes) const;
  // As Parse reads it.
  std::string ToString() const;

 private:
  enum class Kind { kAuto, kBytes, kPercent };
  MemoryHeadroom(Kind kind, uint64_t value) : kind_(kind), value_(value) {}

  Kind kind_ = Kind::kAuto;
  uint64_t value_ = 0;
};

}  // namespace forestage
