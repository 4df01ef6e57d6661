// ParseWeightIndex on any text: no crash, and no name that leads out of the directory.
#include <cstddef>
#include <cstdint>

#include "checkpoint/weight_index.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto entries = forestage::ParseWeightIndex(
      absl::string_view(reinterpret_cast<const char*>(bytes), size), "index");
  if (!entries.ok()) return 0;
  CHECK(!entries->empty());
  for (size_t i = 0; i < entries->size(); ++i) {
    const forestage::IndexedTensor& entry = (*entries)[i];
    CHECK(!entry.shard.empty() && entry.shard != "." && entry.shard != "..");
    CHECK(entry.shard.find('/') == std::string::npos &&
          entry.shard.find('\0') == std::string::npos);
    CHECK(i == 0 || (*entries)[i - 1].tensor < entry.tensor);
  }
  return 0;
}
