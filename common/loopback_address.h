// Addresses that only processes of this machine can reach.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

struct LoopbackAddress {
  // An IPv4 address in numbers.
  std::string host;
  // 0: a free one is to be taken.
  uint16_t port = 0;

  // "127.0.0.1:9748".
  std::string ToString() const;
};

// "127.0.0.1:9748", any other address of 127.0.0.0/8, or "localhost:9748" (127.0.0.1). IPv6 is
// refused: the metrics library of Debian and Ubuntu is built without it. INVALID_ARGUMENT says what
// is wrong.
absl::StatusOr<LoopbackAddress> ParseLoopbackAddress(absl::string_view text);

}  // namespace forestage
