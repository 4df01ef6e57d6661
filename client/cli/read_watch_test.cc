#include "client/cli/read_watch.h"

#include "client/cli/stall_watch.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

ReadPlace At(uint64_t offset, bool waits_for_daemon = false) {
  return {.file = "/models/a b", .offset = offset, .waits_for_daemon = waits_for_daemon};
}

TEST(ReadWatchTest, TellsOnceOfAReadThatStandsAndAgainWhenItHasMoved) {
  ReadWatch watch;
  const absl::Time begin = absl::UnixEpoch();
  EXPECT_FALSE(watch.Look({At(4096)}, begin).has_value());
  EXPECT_FALSE(watch.Look({At(4096)}, begin + kStallPatience / 2).has_value());
  const std::optional<ReadPlace> stuck = watch.Look({At(4096)}, begin + kStallPatience);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(ReadPlaceText(*stuck), "own read of /models/a%20b at offset 4096");
  EXPECT_FALSE(watch.Look({At(4096)}, begin + 2 * kStallPatience).has_value());
  EXPECT_FALSE(watch.Look({At(8192)}, begin + 2 * kStallPatience).has_value());
  EXPECT_FALSE(watch.Look({At(4096)}, begin + 2 * kStallPatience).has_value());
  EXPECT_TRUE(watch.Look({At(4096)}, begin + 3 * kStallPatience).has_value());
}

TEST(ReadWatchTest, WhoReadsIsPartOfThePlace) {
  ReadWatch watch;
  const absl::Time begin = absl::UnixEpoch();
  EXPECT_FALSE(watch.Look({At(0, true)}, begin).has_value());
  EXPECT_FALSE(watch.Look({At(0, false)}, begin + kStallPatience).has_value());
  const std::optional<ReadPlace> stuck = watch.Look({At(0, false)}, begin + 2 * kStallPatience);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_FALSE(stuck->waits_for_daemon);
  EXPECT_EQ(ReadPlaceText(At(0, true)), "the daemon's read of /models/a%20b at offset 0");
}

}  // namespace
}  // namespace forestage
