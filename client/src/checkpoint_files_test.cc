#include "client/src/checkpoint_files.h"

#include <fcntl.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/stat.h>
#include <sys/vfs.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

// Two shards on a file system that stands for FUSE.
class CheckpointFilesTest : public ::testing::Test {
 protected:
  CheckpointFilesTest() {
    for (const char* name : {"model-1.safetensors", "model-2.safetensors"}) {
      std::ofstream(directory_.File(name)) << "bytes of " << name;
    }
    struct statfs file_system = {};
    EXPECT_EQ(statfs(directory_.path().c_str(), &file_system), 0);
    magic_ = static_cast<uint32_t>(file_system.f_type);
  }

  std::shared_ptr<CheckpointFiles> Name() const {
    absl::StatusOr<std::shared_ptr<CheckpointFiles>> files =
        CheckpointFiles::Open(directory_.path(), {}, magic_);
    EXPECT_OK(files);
    EXPECT_TRUE((*files)->incomplete());
    return *files;
  }
  UniqueFd OpenFile(size_t number, int flags) const {
    UniqueFd fd(open(directory_.File("model-" + std::to_string(number) + ".safetensors").c_str(),
                     flags | O_CLOEXEC));
    EXPECT_TRUE(fd.valid());
    return fd;
  }
  // Who opened it moved its position, which no other open file has.
  static bool IsMarked(const OpenShard& shard) { return lseek(shard.fd.get(), 0, SEEK_CUR) == 3; }
  static UniqueFd Mark(UniqueFd fd) {
    EXPECT_EQ(lseek(fd.get(), 3, SEEK_SET), 3);
    return fd;
  }
  static void ExpectOpen(const OpenShard& shard) {
    EXPECT_FALSE(shard.named_only);
    EXPECT_TRUE(shard.mapped);
    EXPECT_EQ(fcntl(shard.fd.get(), F_GETFL) & (O_ACCMODE | O_PATH), O_RDONLY);
    const std::string content(reinterpret_cast<const char*>(shard.mapping.bytes().data()),
                              shard.mapping.bytes().size());
    EXPECT_EQ(content, "bytes of " + shard.name);
    EXPECT_EQ(shard.bytes, content.size());
  }

  const TemporaryDirectoryForTest directory_;
  uint32_t magic_ = 0;
};

TEST_F(CheckpointFilesTest, NamesOnlyWhereAnOpenMayDoHarm) {
  for (const std::optional<uint32_t> magic :
       {std::optional(magic_ + 1), std::optional<uint32_t>()}) {
    ASSERT_OK_AND_ASSIGN(const auto files, CheckpointFiles::Open(directory_.path(), {}, magic));
    EXPECT_FALSE(files->incomplete());
    for (const OpenShard& shard : files->shards()) ExpectOpen(shard);
  }
  const auto named = Name();
  for (const OpenShard& shard : named->shards()) {
    EXPECT_EQ(fcntl(shard.fd.get(), F_GETFL) & O_PATH, O_PATH);
    EXPECT_EQ(shard.bytes, ("bytes of " + shard.name).size());
    EXPECT_NE(shard.mtime_ns, 0);
  }
}

TEST_F(CheckpointFilesTest, UsesWhatIsLentAndOpensTheRest) {
  const auto files = Name();
  std::vector<UniqueFd> lent(2);
  lent[1] = Mark(OpenFile(2, O_RDONLY));
  ASSERT_OK(files->OpenRest(std::move(lent)));
  EXPECT_FALSE(files->incomplete());
  for (const OpenShard& shard : files->shards()) ExpectOpen(shard);
  EXPECT_FALSE(IsMarked(files->shards()[0]));
  EXPECT_TRUE(IsMarked(files->shards()[1]));
}

TEST_F(CheckpointFilesTest, OpensAllWithoutALender) {
  const auto files = Name();
  ASSERT_OK(files->OpenRest({}));
  for (const OpenShard& shard : files->shards()) ExpectOpen(shard);
}

TEST_F(CheckpointFilesTest, WhatALenderGivesWronglyIsNotUsed) {
  std::vector<UniqueFd> wrong;
  wrong.push_back(Mark(OpenFile(2, O_RDONLY)));  // another file
  wrong.push_back(Mark(OpenFile(1, O_RDWR)));
  wrong.push_back(OpenFile(1, O_PATH));
  wrong.push_back(UniqueFd(open("/dev/zero", O_RDONLY | O_CLOEXEC)));
  for (UniqueFd& fd : wrong) {
    const auto files = Name();
    std::vector<UniqueFd> lent(2);
    lent[0] = std::move(fd);
    ASSERT_OK(files->OpenRest(std::move(lent)));
    for (const OpenShard& shard : files->shards()) ExpectOpen(shard);
    EXPECT_FALSE(IsMarked(files->shards()[0]));
  }
}

TEST_F(CheckpointFilesTest, FileThatIsGoneMeanwhileIsAnErrorByName) {
  const auto files = Name();
  ASSERT_EQ(unlink(directory_.File("model-1.safetensors").c_str()), 0);
  EXPECT_THAT(files->OpenRest({}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model-1.safetensors")));
  EXPECT_TRUE(files->incomplete());
}

}  // namespace
}  // namespace forestage
