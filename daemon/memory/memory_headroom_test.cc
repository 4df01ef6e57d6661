#include "daemon/memory/memory_headroom.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/units.h"
#include "daemon/memory/memory_text.h"

namespace forestage {
namespace {

TEST(MemoryHeadroomTest, AutoIsATenthWithinBoundsAndAtMostHalf) {
  const MemoryHeadroom headroom;
  EXPECT_EQ(headroom.BytesOf(100 * kGiB), 10 * kGiB);
  EXPECT_EQ(headroom.BytesOf(4 * kGiB), kGiB);
  EXPECT_EQ(headroom.BytesOf(2 * kTiB), 16 * kGiB);
  EXPECT_EQ(headroom.BytesOf(256 * kMiB), 128 * kMiB);
  EXPECT_EQ(headroom.BytesOf(0), 0u);
}

TEST(MemoryHeadroomTest, ASizeAndAShareAreTakenAsTheyAre) {
  EXPECT_EQ(MemoryHeadroom::Parse("3GiB")->BytesOf(kGiB), 3 * kGiB);
  EXPECT_EQ(MemoryHeadroom::Parse("0")->BytesOf(kGiB), 0u);
  EXPECT_EQ(MemoryHeadroom::Parse("25%")->BytesOf(8 * kGiB), 2 * kGiB);
  EXPECT_EQ(MemoryHeadroom::Parse("0%")->BytesOf(kGiB), 0u);
  EXPECT_EQ(MemoryHeadroom::Parse("90%")->BytesOf(150), 135u);
  // No product overflows.
  EXPECT_EQ(MemoryHeadroom::Parse("50%")->BytesOf(kNoMemoryLimit), kNoMemoryLimit / 2);
}

TEST(MemoryHeadroomTest, RefusesWhatIsNoHeadroom) {
  for (const char* text : {"", "%", "91%", "-1%", "1.5%", "10 %", "ten", "Auto", "8GB", "none"}) {
    EXPECT_FALSE(MemoryHeadroom::Parse(text).has_value()) << text;
  }
}

TEST(MemoryHeadroomTest, IsWrittenAsItIsRead) {
  for (const char* text : {"auto", "8GiB", "1000", "15%"}) {
    EXPECT_EQ(MemoryHeadroom::Parse(text)->ToString(), text);
  }
}

}  // namespace
}  // namespace forestage
