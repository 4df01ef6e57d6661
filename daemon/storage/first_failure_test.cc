#include "daemon/storage/first_failure.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

TEST(FirstFailureTest, IsGoodWhileNoPieceHasFailed) {
  FirstFailure failure;
  EXPECT_OK(failure.status());
  EXPECT_TRUE(failure.Wants(0));
  EXPECT_TRUE(failure.Wants(1 << 20));
}

TEST(FirstFailureTest, IsTheErrorOfTheFirstPieceOfTheFileWhicheverFailedFirst) {
  FirstFailure failure;
  failure.OnPieceFailed(300, absl::UnknownError("at 300"));
  EXPECT_TRUE(failure.Wants(200));
  EXPECT_FALSE(failure.Wants(400)) << "it could tell nothing new";
  failure.OnPieceFailed(100, absl::UnknownError("at 100"));
  failure.OnPieceFailed(200, absl::UnknownError("at 200"));
  EXPECT_THAT(failure.status(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("at 100")));
}

TEST(FirstFailureTest, NothingChangesItAfterACancel) {
  FirstFailure failure;
  failure.Cancel(absl::CancelledError("cancelled"));
  EXPECT_FALSE(failure.Wants(0));
  failure.OnPieceFailed(0, absl::UnknownError("late"));
  EXPECT_THAT(failure.status(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
}

TEST(FirstFailureTest, ACancelHidesNoError) {
  FirstFailure failure;
  failure.OnPieceFailed(100, absl::UnknownError("at 100"));
  failure.Cancel(absl::CancelledError("cancelled"));
  EXPECT_FALSE(failure.Wants(0));
  EXPECT_THAT(failure.status(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("at 100")));
}

}  // namespace
}  // namespace forestage
