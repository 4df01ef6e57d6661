// Where the sections of a catalog lie.
#pragma once

#include <cstdint>
#include <optional>

#include "checkpoint/catalog_format.h"

namespace forestage {

// Byte offsets in the catalog.
struct CatalogLayout {
  uint64_t shards = 0;
  uint64_t tensors = 0;
  uint64_t dimensions = 0;
  uint64_t alphabetical = 0;
  uint64_t metadata = 0;
  uint64_t strings = 0;
  uint64_t end = 0;

  // From the counts of a header that may say anything; nullopt when the whole does not fit 64 bits.
  static std::optional<CatalogLayout> Of(const CatalogHeader& header);
};

}  // namespace forestage
