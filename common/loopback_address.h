// Addresses that only processes of this machine can reach.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

struct LoopbackAddress {
  // An IP address in numbers, without brackets.
  std::string host;
  // 0: a free one is to be taken.
  uint16_t port = 0;
  bool is_ipv6 = false;

  // "127.0.0.1:9748", "[::1]:9748".
  std::string ToString() const;
};

// "127.0.0.1:9748", any other address of 127.0.0.0/8, "localhost:9748" (127.0.0.1) or
// "[::1]:9748". INVALID_ARGUMENT says what is wrong, also for an address others could reach.
absl::StatusOr<LoopbackAddress> ParseLoopbackAddress(absl::string_view text);

}  // namespace forestage
