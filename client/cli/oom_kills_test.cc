#include "client/cli/oom_kills.h"

#include "gtest/gtest.h"

namespace forestage {
namespace {

TEST(OomKillsTest, CountStandsInItsLine) {
  EXPECT_EQ(ParseOomKills("pgfault 7\noom_kill 3\nnuma_hit 9\n"), 3u);
  EXPECT_EQ(ParseOomKills("oom_kill 0\n"), 0u);
}

TEST(OomKillsTest, NoCountWhereTheKernelHasNone) {
  EXPECT_EQ(ParseOomKills(""), std::nullopt);
  EXPECT_EQ(ParseOomKills("oom_killer 3\noom_kill x\n"), std::nullopt);
}

}  // namespace
}  // namespace forestage
