#include "client/src/timed_call.h"

#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

TEST(TimedCallTest, GivesTheResultOfWhatComesBackAndKeepsNothing) {
  auto held = std::make_shared<int>(0);
  EXPECT_THAT(CallUntil(absl::InfiniteFuture(),
                        [held] { return absl::DataLossError(std::to_string(++*held)); }),
              StatusIs(absl::StatusCode::kDataLoss, testing::HasSubstr("1")));
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TimedCallTest, IsBackAtTheDeadlineAlthoughTheCallIsNot) {
  auto end = std::make_shared<absl::Notification>();
  auto ended = std::make_shared<absl::Notification>();
  EXPECT_THAT(CallUntil(absl::Now() + absl::Milliseconds(20),
                        [end, ended] {
                          end->WaitForNotification();
                          ended->Notify();
                          return absl::OkStatus();
                        }),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::HasSubstr("deadline")));
  EXPECT_FALSE(ended->HasBeenNotified());
  end->Notify();
  ended->WaitForNotification();
}

}  // namespace
}  // namespace forestage
