// Lines of `load --digests`: who got which bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace forestage {

// SHA-256 as 64 lower-case hexadecimal digits.
std::string Sha256Hex(absl::Span<const std::byte> bytes);

// "RANK NAME SHA256", without a newline: three fields with one space between them. The name is as
// EscapeName makes it.
std::string DigestLine(uint32_t rank, absl::string_view tensor_name,
                       absl::Span<const std::byte> packed_bytes);

}  // namespace forestage
