#include "common/cached_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include <sys/wait.h>

#include "common/errno_status.h"
#include "common/seccomp_for_test.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace forestage {
namespace {

TEST(CachedBytesTest, CountsThePagesOfTheRange) {
  const TemporaryDirectoryForTest directory(kDiskForTest);
  const UniqueFd fd(open(directory.File("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd.valid());
  const std::vector<char> bytes(8 * PageBytes() + 1, 'x');
  ASSERT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  const absl::StatusOr<uint64_t> all = CachedBytes(fd.get(), 0, bytes.size());
  // A kernel before 6.5 must say so.
  if (!all.ok() && ErrnoOf(all.status()) == ENOSYS) return;
  ASSERT_OK(all);
  EXPECT_EQ(*all, 9 * PageBytes());
  EXPECT_EQ(*CachedBytes(fd.get(), PageBytes(), 3 * PageBytes()), 2 * PageBytes());
  EXPECT_EQ(*CachedBytes(fd.get(), PageBytes(), PageBytes()), 0u);
  ASSERT_EQ(fsync(fd.get()), 0);
  ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  EXPECT_EQ(*CachedBytes(fd.get(), 0, bytes.size()), 0u);
}

TEST(CachedBytesTest, SaysWhatRefusedIt) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!ForbidForTest(kCachestatCall, EPERM)) _exit(2);
    _exit(ErrnoOf(CachedBytes(0, 0, 1).status()) == EPERM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace forestage
