// ParseWeightIndex on any text: no crash, and no name that leads out of the directory.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "checkpoint/weight_index.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto index = forestage::ParseWeightIndex(
      absl::string_view(reinterpret_cast<const char*>(bytes), size), nullptr, "index");
  if (!index.ok()) return 0;
  CHECK(!index->entries.empty());
  std::set<absl::string_view> names;
  for (const forestage::WeightIndex::Entry& entry : index->entries) {
    CHECK(names.insert(entry.tensor).second);
    const std::string& shard = index->shards.at(entry.shard);
    CHECK(!shard.empty() && shard != "." && shard != "..");
    CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
  }
  return 0;
}
