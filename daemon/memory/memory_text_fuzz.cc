// Any bytes as /proc/meminfo, memory.stat, a limit, /proc/PID/cgroup and mountinfo: what is taken
// keeps its bounds. The first byte splits the rest between the two texts that belong together.
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

#include "common/check.h"
#include "daemon/memory/cgroup_chain.h"
#include "daemon/memory/memory_headroom.h"
#include "daemon/memory/memory_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace forestage;  // NOLINT: a fuzz target is a program of its own
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(input + 1), size - 1);
  const auto kib = MeminfoBytes(text, "MemAvailable");
  CHECK(!kib.has_value() || *kib % 1024 == 0);
  (void)MemoryStatBytes(text, "total_active_file");
  (void)ParseMemoryCounter(text);
  const auto limit = ParseMemoryLimit(text);
  CHECK(!limit.has_value() || *limit == kNoMemoryLimit || *limit < (uint64_t{1} << 62));
  const auto headroom = MemoryHeadroom::Parse(text);
  if (headroom.has_value()) {
    const auto again = MemoryHeadroom::Parse(headroom->ToString());
    CHECK(again.has_value() && again->BytesOf(12345) == headroom->BytesOf(12345));
  }
  const size_t split = text.size() * input[0] / 256;
  const auto mounts = ParseCgroupMounts(text.substr(split));
  for (const CgroupMembership& membership : ParseCgroupMemberships(text.substr(0, split))) {
    for (const CgroupChain& chain : FindCgroupChains(membership, mounts)) {
      CHECK(!chain.directories.empty());
      for (const std::string& directory : chain.directories) CHECK(directory[0] == '/');
    }
  }
  return 0;
}
