#include "checkpoint/catalog_layout.h"

namespace forestage {
namespace {

// Deals out section after section; remembers an overflow.
class SectionCursor {
 public:
  explicit SectionCursor(uint64_t offset) : offset_(offset) {}

  // The offset of a section of `count` records of `record_bytes`, padded to 8 bytes.
  uint64_t Next(uint64_t count, uint64_t record_bytes) {
    const uint64_t begin = offset_;
    uint64_t bytes = 0;
    uint64_t padded = 0;
    overflow_ = overflow_ || __builtin_mul_overflow(count, record_bytes, &bytes) ||
                __builtin_add_overflow(bytes, uint64_t{7}, &padded) ||
                __builtin_add_overflow(offset_, padded & ~uint64_t{7}, &offset_);
    return begin;
  }
  uint64_t offset() const { return offset_; }
  bool overflow() const { return overflow_; }

 private:
  uint64_t offset_;
  bool overflow_ = false;
};

}  // namespace

std::optional<CatalogLayout> CatalogLayout::Of(const CatalogHeader& header) {
  SectionCursor cursor(sizeof(CatalogHeader));
  CatalogLayout layout;
  layout.shards = cursor.Next(header.shard_count, sizeof(ShardRecord));
  layout.tensors = cursor.Next(header.tensor_count, sizeof(TensorRecord));
  layout.dimensions = cursor.Next(header.dimension_count, sizeof(uint64_t));
  layout.alphabetical = cursor.Next(header.tensor_count, sizeof(uint32_t));
  layout.metadata = cursor.Next(header.metadata_count, sizeof(MetadataRecord));
  layout.strings = cursor.Next(header.string_bytes, 1);
  layout.end = cursor.offset();
  if (cursor.overflow()) return std::nullopt;
  return layout;
}

}  // namespace forestage
