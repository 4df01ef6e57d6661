#include "client/cli/agreement_watch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch();
const absl::Time kLater = kStart + AgreementWatch::kPatience;

TEST(AgreementWatchTest, EndsWhoWaitsForARankThatFailedBeforeItsOpen) {
  AgreementWatch watch(4);
  watch.OnOpened(0);
  EXPECT_EQ(watch.culprit(), std::nullopt);
  watch.OnEnded(2, kStart);
  EXPECT_EQ(watch.culprit(), 2u);
  EXPECT_THAT(watch.TakeOverdue(kLater - absl::Milliseconds(1)), IsEmpty());
  EXPECT_THAT(watch.TakeOverdue(kLater), ElementsAre(1, 3));
  EXPECT_THAT(watch.TakeOverdue(kLater + absl::Hours(1)), IsEmpty()) << "each once";
}

TEST(AgreementWatchTest, LeavesTheDaemonTimeToTellTheOthers) {
  AgreementWatch watch(3);
  watch.OnEnded(0, kStart);
  watch.OnOpened(1);
  watch.OnEnded(2, kStart + absl::Milliseconds(1));
  EXPECT_EQ(watch.culprit(), 0u) << "the first one";
  EXPECT_THAT(watch.TakeOverdue(kLater), IsEmpty());
}

TEST(AgreementWatchTest, NobodyWaitsForARankThatFailsAfterItsOpen) {
  AgreementWatch watch(2);
  watch.OnOpened(0);
  watch.OnEnded(0, kStart);
  EXPECT_THAT(watch.TakeOverdue(kLater), IsEmpty());
  EXPECT_EQ(watch.culprit(), std::nullopt);
}

}  // namespace
}  // namespace forestage
