#include "common/io_uring_support.h"

#include <cerrno>
#include <utility>

#include <sys/syscall.h>

#include "common/child_process.h"
#include "common/seccomp_for_test.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(IoUringSupportTest, IsFoundByUsingIt) { EXPECT_OK(CheckIoUring()); }

TEST(IoUringSupportTest, NamesTheRefusedCallAndWhatToAllow) {
  for (const std::pair<long, const char*>& refused :
       {std::pair<long, const char*>{SYS_io_uring_setup, "io_uring_setup"},
        std::pair<long, const char*>{SYS_io_uring_register, "io_uring_register"},
        std::pair<long, const char*>{SYS_io_uring_enter, "io_uring_enter"}}) {
    ChildProcess child([&] {
      ASSERT_TRUE(ForbidForTest(refused.first, EPERM));
      EXPECT_THAT(CheckIoUring(), StatusIs(absl::StatusCode::kPermissionDenied,
                                           AllOf(HasSubstr(refused.second), HasSubstr("seccomp"),
                                                 HasSubstr("EPERM"))));
    });
    EXPECT_EQ(child.Wait(), 0) << refused.second;
  }
}

TEST(IoUringSupportTest, SaysThatAKernelMayBeWithoutIt) {
  ChildProcess child([] {
    ASSERT_TRUE(ForbidForTest(SYS_io_uring_setup, ENOSYS));
    EXPECT_EQ(CheckIoUring().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(CheckIoUring().message(),
                AllOf(HasSubstr("ENOSYS"), HasSubstr("built without io_uring")));
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace forestage
