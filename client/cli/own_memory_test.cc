#include "client/cli/own_memory.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

TEST(OwnMemoryTest, PartsAreAlignedAndDoNotOverlap) {
  const std::vector<uint64_t> sizes = {1, 0, 64, 3 * kMiB + 1, 100, 2 * kMiB};
  uint64_t total = 0;
  for (const uint64_t size : sizes) total += size;
  ASSERT_OK_AND_ASSIGN(OwnMemory memory, OwnMemory::Reserve(total, sizes.size()));
  std::vector<absl::Span<std::byte>> parts;
  for (const uint64_t size : sizes) {
    parts.push_back(memory.Take(size));
    ASSERT_EQ(parts.back().size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parts.back().data()) % OwnMemory::kAlignment, 0);
    std::memset(parts.back().data(), static_cast<int>(parts.size()), size);
  }
  // A move leaves them where they are.
  const OwnMemory moved = std::move(memory);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const std::byte value : parts[i]) ASSERT_EQ(value, std::byte(i + 1));
  }
}

TEST(OwnMemoryTest, BeginsWithAHugePage) {
  ASSERT_OK_AND_ASSIGN(OwnMemory memory, OwnMemory::Reserve(100, 1));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.Take(100).data()) % (2 * kMiB), 0);
}

TEST(OwnMemoryTest, NothingNeedsNothing) {
  ASSERT_OK_AND_ASSIGN(OwnMemory memory, OwnMemory::Reserve(0, 0));
  EXPECT_TRUE(memory.Take(0).empty());
}

TEST(OwnMemoryTest, MoreThanTheSystemHasIsAnError) {
  EXPECT_FALSE(OwnMemory::Reserve(uint64_t{1} << 60, 1).ok());
}

}  // namespace
}  // namespace forestage
