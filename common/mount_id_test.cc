#include "common/mount_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include <sys/mount.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

class MountIdTest : public ::testing::Test {
 protected:
  // A new mount at the same place; its id.
  std::optional<uint64_t> MountAgain() {
    EXPECT_EQ(mount("none", directory_.path().c_str(), "tmpfs", 0, "size=1m"), 0);
    const UniqueFd fd(open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return UniqueMountIdOf(fd.get());
  }
  void Unmount() { EXPECT_EQ(umount2(directory_.path().c_str(), 0), 0); }

  TemporaryDirectoryForTest directory_{kDiskForTest};
};

TEST_F(MountIdTest, IsNoneOfWhatIsNotOpen) { EXPECT_EQ(UniqueMountIdOf(-1), std::nullopt); }

TEST_F(MountIdTest, IsTheSameForTheWholeMount) {
  const UniqueFd one(open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  directory_.Write("file", "x");
  const UniqueFd other(open(directory_.File("file").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(UniqueMountIdOf(one.get()), UniqueMountIdOf(other.get()));
  if (const std::optional<uint64_t> id = UniqueMountIdOf(one.get())) {
    EXPECT_FALSE(MountIsGone(*id));
  }
}

TEST_F(MountIdTest, IsNeverGivenToTheNextMountAndSaysThatAMountIsGone) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  const std::optional<uint64_t> first = MountAgain();
  if (!first.has_value()) {
    Unmount();
    GTEST_SKIP() << "this kernel (before 6.8) has no unique mount ids";
  }
  EXPECT_FALSE(MountIsGone(*first));
  Unmount();
  EXPECT_TRUE(MountIsGone(*first));
  const std::optional<uint64_t> second = MountAgain();
  EXPECT_NE(second, first);
  EXPECT_TRUE(MountIsGone(*first));
  Unmount();
}

}  // namespace
}  // namespace forestage
