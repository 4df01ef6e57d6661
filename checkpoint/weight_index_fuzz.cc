// ParseWeightIndex on any text: no crash, and no name that leads out of the directory unless that
// is said.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "checkpoint/weight_index.h"
#include "common/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto parsed = forestage::ParseWeightIndex(
      absl::string_view(reinterpret_cast<const char*>(bytes), size), nullptr, "index");
  if (!parsed.ok()) return 0;
  const forestage::WeightIndex& index = parsed->index;
  CHECK(!index.entries.empty() || !parsed->faults.empty());
  std::set<absl::string_view> names;
  for (const forestage::WeightIndex::Entry& entry : index.entries) {
    names.insert(entry.tensor);
    const std::string& shard = index.shards.at(entry.shard);
    if (!parsed->faults.empty()) continue;
    CHECK(!shard.empty() && shard != "." && shard != "..");
    CHECK(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos);
  }
  CHECK((names.size() == index.entries.size()) == forestage::RepeatedKeys(index).empty());
  return 0;
}
