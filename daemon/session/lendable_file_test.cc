#include "daemon/session/lendable_file.h"

#include <fcntl.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/stat.h>
#include <sys/vfs.h>

#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// Files of the temporary directory stand for those of FUSE.
class LendableFileTest : public ::testing::Test {
 protected:
  LendableFileTest() { std::ofstream(path_) << "weights"; }

  UniqueFd Open(int flags) const { return Open(path_, flags); }
  static UniqueFd Open(const std::string& path, int flags) {
    UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC));
    EXPECT_TRUE(fd.valid()) << path;
    return fd;
  }
  uint32_t magic() const {
    struct statfs file_system = {};
    EXPECT_EQ(statfs(path_.c_str(), &file_system), 0);
    return static_cast<uint32_t>(file_system.f_type);
  }
  std::optional<LendableFile> Named(int flags) const {
    return LookAtNamedFile(Open(flags).get(), owner_, magic());
  }
  // Whether this reader may borrow a file of this mode.
  bool MayBorrow(mode_t mode, const FileReader& reader) const {
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    return LookAtNamedFile(Open(O_PATH).get(), reader, magic()).has_value();
  }

  const TemporaryDirectoryForTest folder_;
  const std::string path_ = folder_.File("model.safetensors");
  const FileReader owner_ = {.uid = geteuid(), .gid = getegid()};
};

TEST_F(LendableFileTest, OnlyWhoOpensNothingNamesAFile) {
  EXPECT_TRUE(Named(O_PATH).has_value());
  EXPECT_FALSE(Named(O_RDONLY).has_value());
  EXPECT_FALSE(Named(O_RDWR).has_value());
}

TEST_F(LendableFileTest, OnlyWhatIsOpenForReadingAloneIsLent) {
  EXPECT_TRUE(LookAtOpenFile(Open(O_RDONLY).get(), magic()).has_value());
  EXPECT_FALSE(LookAtOpenFile(Open(O_RDWR).get(), magic()).has_value());
  EXPECT_FALSE(LookAtOpenFile(Open(O_WRONLY).get(), magic()).has_value());
  EXPECT_FALSE(LookAtOpenFile(Open(O_PATH).get(), magic()).has_value());
  const UniqueFd direct(open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (direct.valid()) {
    EXPECT_FALSE(LookAtOpenFile(direct.get(), magic()).has_value());
  }
}

TEST_F(LendableFileTest, OtherFileSystemsAndWhatIsNoFileAreNotLent) {
  EXPECT_FALSE(LookAtOpenFile(Open(O_RDONLY).get(), magic() + 1).has_value());
  EXPECT_FALSE(LookAtNamedFile(Open(O_PATH).get(), owner_, magic() + 1).has_value());
  EXPECT_FALSE(LookAtOpenFile(Open("/dev/null", O_RDONLY).get(), magic()).has_value());
  const std::string fifo = folder_.File("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0644), 0);
  for (const std::string& path : {fifo, std::string("/")}) {
    EXPECT_FALSE(LookAtNamedFile(Open(path, O_PATH).get(), owner_, magic()).has_value()) << path;
  }
  EXPECT_FALSE(LookAtOpenFile(-1, magic()).has_value());
}

TEST_F(LendableFileTest, OneFileHasOneNameHoweverItIsReached) {
  const std::string link = folder_.File("link");
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  const auto named = LookAtNamedFile(Open(link, O_PATH).get(), owner_, magic());
  const auto opened = LookAtOpenFile(Open(O_RDONLY).get(), magic());
  ASSERT_TRUE(named.has_value() && opened.has_value());
  EXPECT_EQ(named->name, opened->name);
  const std::string other = folder_.File("other");
  std::ofstream(other) << "weights";
  EXPECT_NE(LookAtOpenFile(Open(other, O_RDONLY).get(), magic())->name, opened->name);
}

TEST_F(LendableFileTest, WhoeverTheModeDoesNotLetReadMayNotBorrow) {
  struct stat attributes = {};
  ASSERT_EQ(stat(path_.c_str(), &attributes), 0);
  const uid_t owner = attributes.st_uid;
  const gid_t group = attributes.st_gid;
  const FileReader member = {.uid = owner + 1, .gid = group + 1, .groups = {group + 2, group}};
  const FileReader in_group = {.uid = owner + 1, .gid = group};
  const FileReader stranger = {.uid = owner + 1, .gid = group + 1, .groups = {group + 2}};
  const FileReader of_owner = {.uid = owner, .gid = group + 1};
  EXPECT_TRUE(MayBorrow(0400, of_owner));
  EXPECT_TRUE(MayBorrow(0040, in_group));
  EXPECT_TRUE(MayBorrow(0040, member));
  EXPECT_TRUE(MayBorrow(0004, stranger));
  // As the kernel: who is the owner, or of the group, is nobody else.
  EXPECT_FALSE(MayBorrow(0044, of_owner));
  EXPECT_FALSE(MayBorrow(0404, member));
  EXPECT_FALSE(MayBorrow(0440, stranger));
  // Capabilities are not asked for.
  EXPECT_FALSE(MayBorrow(0000, {.uid = 0, .gid = 0}));
}

}  // namespace
}  // namespace forestage
