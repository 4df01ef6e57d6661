#include "client/src/destination_memory.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include <sys/mman.h>

#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;

// Fresh memory of the system's own, between two pages that nobody may touch.
class FreshMemory {
 public:
  explicit FreshMemory(size_t bytes) : bytes_(bytes + 2 * PageBytes()) {
    void* address = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    begin_ = static_cast<std::byte*>(address);
    EXPECT_EQ(mprotect(begin_ + PageBytes(), bytes, PROT_READ | PROT_WRITE), 0);
  }
  ~FreshMemory() { munmap(begin_, bytes_); }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;

  absl::Span<std::byte> bytes() const { return {begin_ + PageBytes(), bytes_ - 2 * PageBytes()}; }

  // Pages of it that are in memory.
  size_t CountPresent() const {
    std::vector<unsigned char> pages(bytes().size() / PageBytes());
    EXPECT_EQ(mincore(bytes().data(), bytes().size(), pages.data()), 0);
    size_t present = 0;
    for (const unsigned char page : pages) present += page & 1;
    return present;
  }

 private:
  const size_t bytes_;
  std::byte* begin_ = nullptr;
};

// What the system was told of the mapping that holds an address; "hg" is the advice.
std::string FlagsOf(const std::byte* address) {
  std::ifstream file("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = begin <= wanted && wanted < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "no such mapping";
}

bool IsAdvised(const std::byte* address) {
  return FlagsOf(address).find(" hg ") != std::string::npos;
}

bool SystemHasHugePages() { return std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"); }

TEST(DestinationMemoryTest, LargeFreshMemoryIsAdvisedFromItsFirstToItsLastPage) {
  const FreshMemory memory(4 * kHugePageBytes);
  // As from an allocator that keeps its own words before what it hands out.
  AdviseHugePages(memory.bytes().subspan(16, memory.bytes().size() - 32));
  EXPECT_EQ(IsAdvised(memory.bytes().data()), SystemHasHugePages());
  EXPECT_EQ(IsAdvised(&memory.bytes().back()), SystemHasHugePages());
  EXPECT_EQ(memory.CountPresent(), 0);
}

TEST(DestinationMemoryTest, PagesBesideTheDestinationAreLeftAsTheyAre) {
  const FreshMemory memory(4 * kHugePageBytes);
  const size_t page = PageBytes();
  AdviseHugePages(memory.bytes().subspan(page, memory.bytes().size() - 2 * page));
  EXPECT_FALSE(IsAdvised(memory.bytes().data()));
  EXPECT_EQ(IsAdvised(memory.bytes().data() + page), SystemHasHugePages());
  EXPECT_FALSE(IsAdvised(&memory.bytes().back()));
}

TEST(DestinationMemoryTest, SmallMemoryAndMemoryInUseAreNotAdvised) {
  const FreshMemory small(kHugeDestinationBytesMin - 1);
  AdviseHugePages(small.bytes().subspan(0, kHugeDestinationBytesMin - 1));
  EXPECT_FALSE(IsAdvised(small.bytes().data()));

  const FreshMemory used(2 * kHugePageBytes);
  used.bytes()[kHugePageBytes] = std::byte{1};
  AdviseHugePages(used.bytes());
  EXPECT_FALSE(IsAdvised(used.bytes().data()));
}

TEST(DestinationMemoryTest, FreshMemoryGetsAllOfItsPagesAndNoOthers) {
  const size_t page = PageBytes();
  const FreshMemory memory(64 * page);
  GivePages(memory.bytes().subspan(16 * page, 32 * page));
  EXPECT_EQ(memory.CountPresent(), 32);
}

TEST(DestinationMemoryTest, NothingIsDoneToMemoryThatIsNotThere) {
  const FreshMemory memory(2 * kHugePageBytes);
  absl::Span<std::byte> gone = memory.bytes();
  ASSERT_EQ(munmap(gone.data(), gone.size()), 0);
  AdviseHugePages(gone);
  GivePages(gone);
}

}  // namespace
}  // namespace forestage
