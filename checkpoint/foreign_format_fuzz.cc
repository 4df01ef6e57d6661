// RecogniseContent on any beginning of a file: no crash, and a text for all that is recognised.
#include <cstddef>
#include <cstdint>

#include "checkpoint/foreign_format.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const absl::string_view begin(reinterpret_cast<const char*>(bytes), size);
  for (const uint64_t file_bytes : {uint64_t{size}, uint64_t{size} + 1'000'000'000}) {
    const forestage::FileContent content = forestage::RecogniseContent(begin, file_bytes);
    CHECK(content.text.empty() == (content.kind == forestage::ContentKind::kUnknown));
    const std::string said = forestage::DescribeForeignFormat(begin, file_bytes);
    CHECK(said.empty() == (content.kind == forestage::ContentKind::kUnknown ||
                           content.kind == forestage::ContentKind::kSafetensors));
  }
  return 0;
}
