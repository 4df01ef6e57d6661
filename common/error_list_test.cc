#include "common/error_list.h"

#include <cerrno>
#include <vector>

#include "common/errno_status.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

TEST(ErrorListTest, NamesAllAndKeepsTheFirstOnesCode) {
  EXPECT_OK(JoinErrors({}));
  EXPECT_OK(JoinErrors({absl::OkStatus(), absl::OkStatus()}));
  const absl::Status status = JoinErrors(
      {absl::OkStatus(), absl::NotFoundError("a"), absl::OkStatus(), absl::InternalError("b")});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, "a\nb"));
}

TEST(ErrorListTest, IsBounded) {
  const std::vector<absl::Status> statuses(kErrorsJoinedMax + 7, absl::NotFoundError("a"));
  EXPECT_THAT(JoinErrors(statuses),
              StatusIs(absl::StatusCode::kNotFound, ::testing::EndsWith("a\na\nand 7 more")));
}

TEST(ErrorListTest, OneErrorKeepsItsErrno) {
  EXPECT_EQ(ErrnoOf(JoinErrors({absl::OkStatus(), ErrnoStatus(EIO, "a")})), EIO);
}

TEST(OneLineTest, HasNoLineBreaks) {
  EXPECT_EQ(OneLine("a is cut\nb is damaged\n"), "a is cut; b is damaged; ");
  EXPECT_EQ(OneLine(""), "");
}

}  // namespace
}  // namespace forestage
