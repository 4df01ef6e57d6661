// ParseHeader on any text: no crash, and what it accepts keeps its promises.
#include <cstddef>
#include <cstdint>

#include "checkpoint/catalog.h"
#include "checkpoint/safetensors_header.h"
#include "common/check.h"

namespace forestage {
namespace {

void CheckAccepted(const SafetensorsHeader& header, uint64_t text_bytes, uint64_t file_bytes) {
  CHECK(header.data_begin == 8 + text_bytes && header.file_bytes == file_bytes);
  uint64_t end = header.data_begin;
  for (const HeaderTensor& tensor : header.tensors) {
    CHECK(tensor.begin == end && tensor.end >= tensor.begin);
    end = tensor.end;
  }
  CHECK(end == file_bytes);
  const absl::StatusOr<std::vector<std::byte>> catalog = BuildCatalog({{"f", 0, header}});
  CHECK(catalog.ok());
  const absl::StatusOr<CatalogView> view = CatalogView::FromBytes(*catalog);
  CHECK(view.ok() && view->tensor_count() == header.tensors.size());
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    CHECK(view->Find(header.tensors[i].name) == i);
  }
}

}  // namespace
}  // namespace forestage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // The first byte is the length of the data buffer.
  if (size == 0) return -1;
  const absl::Span<const std::byte> text(reinterpret_cast<const std::byte*>(bytes + 1), size - 1);
  const uint64_t file_bytes = 8 + text.size() + bytes[0];
  const auto header = forestage::ParseHeader(text, file_bytes, "f");
  if (header.ok()) {
    forestage::CheckAccepted(*header, text.size(), file_bytes);
  } else {
    CHECK(forestage::HeaderRuleOf(header.status()).has_value());
  }
  return 0;
}
