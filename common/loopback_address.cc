#include "common/loopback_address.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <arpa/inet.h>
#include <netinet/in.h>

namespace forestage {
namespace {

absl::Status Wrong(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' ", why));
}

}  // namespace

std::string LoopbackAddress::ToString() const { return absl::StrCat(host, ":", port); }

absl::StatusOr<LoopbackAddress> ParseLoopbackAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Wrong(text, "is not host:port");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view digits = text.substr(colon + 1);
  LoopbackAddress address;
  uint32_t port = 0;
  // SimpleAtoi allows white space and signs around the number.
  if (digits.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(digits, &port) || port > std::numeric_limits<uint16_t>::max()) {
    return Wrong(text, "has no port from 0 to 65535");
  }
  address.port = static_cast<uint16_t>(port);
  if (host == "localhost") host = "127.0.0.1";
  address.host = std::string(host);
  in_addr parsed = {};
  if (inet_pton(AF_INET, address.host.c_str(), &parsed) != 1) {
    return Wrong(text, "names its host neither by an IPv4 address nor as localhost");
  }
  if ((ntohl(parsed.s_addr) >> 24) != 127) return Wrong(text, "is not a loopback address");
  return address;
}

}  // namespace forestage
