#include "common/errno_status.h"

#include <cerrno>

#include "absl/status/status.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ErrnoStatusTest, KeepsTheNumberAndNamesIt) {
  const absl::Status status = ErrnoStatus(EIO, "read of model.safetensors at 4096");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("model.safetensors"), HasSubstr("EIO"))));
  EXPECT_EQ(ErrnoOf(status), EIO);
}

TEST(ErrnoStatusTest, TellsTheCallerWhatKindOfFaultItIs) {
  EXPECT_EQ(ErrnoStatus(EACCES, "open").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(ENOENT, "open").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(ESTALE, "read").code(), absl::StatusCode::kUnavailable);
}

TEST(ErrnoStatusTest, OtherStatusesHaveNoNumber) {
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), 0);
  EXPECT_EQ(ErrnoOf(absl::InternalError("x")), 0);
}

}  // namespace
}  // namespace forestage
