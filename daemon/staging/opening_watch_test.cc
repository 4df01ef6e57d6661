#include "daemon/staging/opening_watch.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "daemon/limits.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Time kBegin = absl::UnixEpoch();

std::vector<std::string> PathsOf(const std::vector<OpeningWatch::Stuck>& stuck) {
  std::vector<std::string> paths;
  for (const OpeningWatch::Stuck& one : stuck) paths.push_back(one.path_label);
  return paths;
}

TEST(OpeningWatchTest, TellsOnceWhatTakesTooLong) {
  OpeningWatch watch;
  const auto slow = watch.Begin("/slow", 7, kBegin);
  auto quick = watch.Begin("/quick", 7, kBegin);
  EXPECT_THAT(watch.NewlyStuck(kBegin + kStuckReadTime - absl::Seconds(1)), IsEmpty());
  quick.reset();
  const std::vector<OpeningWatch::Stuck> stuck = watch.NewlyStuck(kBegin + kStuckReadTime);
  ASSERT_THAT(PathsOf(stuck), ElementsAre("/slow"));
  EXPECT_EQ(stuck[0].uid, 7u);
  EXPECT_EQ(stuck[0].time, kStuckReadTime);
  EXPECT_THAT(watch.NewlyStuck(kBegin + 2 * kStuckReadTime), IsEmpty());
}

TEST(OpeningWatchTest, TellsOneOfTheRanksOfAUserThatOpenTheSame) {
  OpeningWatch watch;
  const auto first = watch.Begin("/slow", 7, kBegin);
  const auto second = watch.Begin("/slow", 7, kBegin + absl::Seconds(1));
  const auto other_user = watch.Begin("/slow", 8, kBegin);
  EXPECT_THAT(PathsOf(watch.NewlyStuck(kBegin + kStuckReadTime)), ElementsAre("/slow", "/slow"));
  EXPECT_THAT(watch.NewlyStuck(kBegin + 2 * kStuckReadTime), IsEmpty());
}

TEST(OpeningWatchTest, TellsAgainWhenItHangsAgain) {
  OpeningWatch watch;
  auto opening = watch.Begin("/slow", 7, kBegin);
  EXPECT_THAT(PathsOf(watch.NewlyStuck(kBegin + kStuckReadTime)), ElementsAre("/slow"));
  opening.reset();
  opening = watch.Begin("/slow", 7, kBegin + kStuckReadTime);
  EXPECT_THAT(PathsOf(watch.NewlyStuck(kBegin + 2 * kStuckReadTime)), ElementsAre("/slow"));
}

}  // namespace
}  // namespace forestage
