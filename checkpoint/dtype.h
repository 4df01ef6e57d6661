// The data types of the safetensors format.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace forestage {

// The 22 types a header may name. The numbers are ours: they stand in catalogs, so they never
// change.
enum class Dtype : uint8_t {
  kBool = 0,
  kF4 = 1,
  kF6E2M3 = 2,
  kF6E3M2 = 3,
  kU8 = 4,
  kI8 = 5,
  kF8E5M2 = 6,
  kF8E4M3 = 7,
  kF8E8M0 = 8,
  kF8E4M3Fnuz = 9,
  kF8E5M2Fnuz = 10,
  kI16 = 11,
  kU16 = 12,
  kF16 = 13,
  kBF16 = 14,
  kI32 = 15,
  kU32 = 16,
  kF32 = 17,
  kC64 = 18,
  kF64 = 19,
  kI64 = 20,
  kU64 = 21,
};
inline constexpr int kDtypeCount = 22;

// Bits of one element; 4 and 6 for the sub-byte types.
uint32_t DtypeBits(Dtype dtype);
// As in a header, "BF16".
absl::string_view DtypeName(Dtype dtype);
// Exact match, as the reference reader; nullopt for anything else.
std::optional<Dtype> DtypeFromName(absl::string_view name);
// For numbers that come from a catalog's bytes.
std::optional<Dtype> DtypeFromNumber(uint8_t number);

}  // namespace forestage
