#include "common/cached_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include <sys/wait.h>

#include "common/errno_status.h"
#include "common/file_mapping.h"
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

TEST(LooksCachedTest, SeesAMissingPageWhereverItIs) {
  constexpr uint64_t kBytes = 2 * kMiB + 1;
  const TemporaryDirectoryForTest directory(kDiskForTest);
  const UniqueFd fd(open(directory.File("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd.valid());
  std::vector<char> bytes(kBytes, 'x');
  ASSERT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(fsync(fd.get()), 0);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping, FileMapping::MapReadOnly(fd.get(), kBytes));
  const auto looks_cached = [&](uint64_t begin, uint64_t end) {
    return LooksCached(fd.get(), mapping.bytes(), begin, end);
  };
  // A kernel before 6.5 tells nothing.
  if (ErrnoOf(CachedBytes(fd.get(), 0, 1).status()) == ENOSYS) {
    EXPECT_FALSE(looks_cached(0, kBytes));
    return;
  }
  EXPECT_TRUE(looks_cached(0, kBytes));
  ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);
  const uint64_t page = PageBytes();
  for (const uint64_t missing : {uint64_t{0}, 5 * page, kMiB, kBytes - 1}) {
    ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    EXPECT_FALSE(looks_cached(missing, missing + 1));
    const uint64_t hole = AlignDown(missing, page);
    const uint64_t behind = std::min(hole + page, kBytes);
    ASSERT_EQ(pread(fd.get(), bytes.data(), hole, 0), static_cast<ssize_t>(hole));
    ASSERT_EQ(pread(fd.get(), bytes.data(), kBytes - behind, static_cast<off_t>(behind)),
              static_cast<ssize_t>(kBytes - behind));
    EXPECT_FALSE(looks_cached(0, kBytes)) << missing;
    EXPECT_FALSE(looks_cached(missing, missing + 1)) << missing;
    EXPECT_TRUE(looks_cached(0, hole)) << missing;
    EXPECT_TRUE(looks_cached(behind, kBytes)) << missing;
  }
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
