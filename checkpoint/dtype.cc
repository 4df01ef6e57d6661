#include "checkpoint/dtype.h"

#include <array>
#include <cstddef>

#include "common/check.h"

namespace forestage {
namespace {

struct DtypeFacts {
  absl::string_view name;
  uint32_t bits;
};

// By number.
constexpr std::array<DtypeFacts, kDtypeCount> kFacts = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const DtypeFacts& FactsOf(Dtype dtype) {
  const size_t number = static_cast<size_t>(dtype);
  CHECK(number < kFacts.size());
  return kFacts[number];
}

}  // namespace

uint32_t DtypeBits(Dtype dtype) { return FactsOf(dtype).bits; }

absl::string_view DtypeName(Dtype dtype) { return FactsOf(dtype).name; }

std::optional<Dtype> DtypeFromName(absl::string_view name) {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<Dtype> DtypeFromNumber(uint8_t number) {
  if (number >= kDtypeCount) return std::nullopt;
  return static_cast<Dtype>(number);
}

}  // namespace forestage
