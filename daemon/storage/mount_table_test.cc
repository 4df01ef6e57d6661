#include "daemon/storage/mount_table.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/mount.h>
#include <sys/stat.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/shard_file.h"

namespace forestage {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class MountTableTest : public ::testing::Test {
 protected:
  MountTableTest() { WriteFileForTest(path(), PatternForTest(1 * kMiB)); }
  std::string path() const { return directory_.File("shard"); }
  absl::StatusOr<std::unique_ptr<ShardFile>> Open(const std::string& path) {
    return ShardFile::Open("shard", OpenForTest(path), &table_);
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
  MountTable table_;
};

TEST_F(MountTableTest, ListsNothingBeforeAFileWasOpened) {
  ASSERT_OK_AND_ASSIGN(const MountFacts facts, table_.FactsOf(OpenForTest(path()).get()));
  EXPECT_NE(facts.type, "");
  EXPECT_THAT(table_.List(), IsEmpty());
}

TEST_F(MountTableTest, ListsAMountOnceWithTheCountOfItsFiles) {
  ASSERT_OK_AND_ASSIGN(const auto first, Open(path()));
  ASSERT_OK_AND_ASSIGN(const auto second, Open(path()));
  const std::vector<MountTable::Seen> seen = table_.List();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].files_opened, 2u);
  EXPECT_EQ(seen[0].files_residency_unknown, 0u);
  EXPECT_EQ(seen[0].probe.mount.device, first->identity().device);
  EXPECT_NE(seen[0].probe.way(), ReadingWay::kRead);
  EXPECT_EQ(seen[0].probe.mount.advice_bytes_max, second->advice_bytes_max());
}

TEST_F(MountTableTest, ListsEachMount) {
  TemporaryDirectoryForTest memory("/dev/shm");
  WriteFileForTest(memory.File("shard"), PatternForTest(10));
  ASSERT_OK_AND_ASSIGN(const auto on_disk, Open(path()));
  ASSERT_OK_AND_ASSIGN(const auto in_memory, Open(memory.File("shard")));
  const std::vector<MountTable::Seen> seen = table_.List();
  ASSERT_THAT(seen, SizeIs(2));
  EXPECT_FALSE(seen[0].probe.mount.memory);
  EXPECT_TRUE(seen[1].probe.mount.memory);
}

TEST_F(MountTableTest, KeepsInMindThatSomeFilesCannotBeAskedAbout) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path()));
  MountProbe probe = file->probe();
  probe.mincore = {Answer::kNo, "somebody else's"};
  table_.OnFileOpened(probe);
  table_.OnFileOpened(file->probe());
  const std::vector<MountTable::Seen> seen = table_.List();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].files_opened, 3u);
  EXPECT_EQ(seen[0].files_residency_unknown, 1u);
  EXPECT_EQ(seen[0].probe.mincore.reason, "somebody else's");
}

TEST_F(MountTableTest, KeepsWhatWasLearnedByReadingWhenTheFilesAreClosed) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, Open(path()));
    file->mount().Learn(FillWay::kFaults);
  }
  const std::vector<MountTable::Seen> seen = table_.List();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].probe.way(), ReadingWay::kFaults);
}

TEST_F(MountTableTest, AnEmptyFileSaysNothingOfItsMount) {
  const std::string empty = directory_.File("empty");
  WriteFileForTest(empty, {});
  ASSERT_OK_AND_ASSIGN(const auto first, Open(empty));
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path()));
  ASSERT_OK_AND_ASSIGN(const auto second, Open(empty));
  const std::vector<MountTable::Seen> seen = table_.List();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].files_opened, 3u);
  EXPECT_EQ(seen[0].files_residency_unknown, 0u);
  EXPECT_TRUE(seen[0].probe.mapping.yes());
}

TEST_F(MountTableTest, IgnoresAMountThatItHasForgotten) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path()));
  MountProbe probe = file->probe();
  probe.mount.device = 12345;
  table_.OnFileOpened(probe);
  EXPECT_THAT(table_.List(), SizeIs(1));
}

// Opens a file while the device's read-ahead is set to so much.
uint64_t AdviceBytesWith(uint64_t kibibytes, const std::string& path,
                         const TemporaryDirectoryForTest& sysfs, MountTable& table) {
  const UniqueFd fd = OpenForTest(path);
  struct stat attributes = {};
  EXPECT_EQ(fstat(fd.get(), &attributes), 0);
  sysfs.Write(absl::StrCat("class/bdi/", DeviceText(attributes.st_dev), "/read_ahead_kb"),
              absl::StrCat(kibibytes, "\n"));
  const auto file = ShardFile::Open("shard", OpenForTest(path), &table);
  EXPECT_OK(file);
  return (*file)->advice_bytes_max();
}

TEST_F(MountTableTest, AChangedReadAheadCountsForWhatIsOpenedNext) {
  MountTable table(
      {.facts_kept = absl::ZeroDuration(), .probe = {.sysfs_root = directory_.path()}});
  EXPECT_EQ(AdviceBytesWith(128, path(), directory_, table), 128 * kKiB);
  EXPECT_EQ(AdviceBytesWith(4096, path(), directory_, table), 4 * kMiB);
  const std::vector<MountTable::Seen> seen = table.List();
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].probe.mount.advice_bytes_max, 4 * kMiB);
  EXPECT_EQ(seen[0].files_opened, 2u);
}

TEST_F(MountTableTest, WhatIsKnownOfAMountHoldsForAWhile) {
  MountTable table(
      {.facts_kept = absl::InfiniteDuration(), .probe = {.sysfs_root = directory_.path()}});
  EXPECT_EQ(AdviceBytesWith(128, path(), directory_, table), 128 * kKiB);
  EXPECT_EQ(AdviceBytesWith(4096, path(), directory_, table), 128 * kKiB);
}

// A file system that is mounted anew at the same place, with the number that the one before had.
class RemountedTest : public MountTableTest {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to mount";
    MountIt();
  }
  void TearDown() override { (void)umount2(mount_point_.path().c_str(), MNT_DETACH); }
  void MountIt() {
    ASSERT_EQ(mount("none", mount_point_.path().c_str(), "tmpfs", 0, "size=4m"), 0);
    WriteFileForTest(mount_point_.File("shard"), PatternForTest(10));
  }

  TemporaryDirectoryForTest mount_point_{kDiskForTest};
};

TEST_F(RemountedTest, NothingThatWasSeenOfAMountIsSaidOfTheNextOneOfItsNumber) {
  // Somebody else may take the number meanwhile.
  for (int tries = 0; tries < 100; ++tries) {
    MountTable table;
    const auto open_in = [&] {
      return *ShardFile::Open("shard", OpenForTest(mount_point_.File("shard")), &table);
    };
    auto file = open_in();
    const uint64_t device = file->identity().device;
    MountProbe probe = file->probe();
    probe.mapping = {Answer::kNo, "direct_io"};
    probe.mincore = {Answer::kNo, "nothing is mapped"};
    table.OnFileOpened(probe);
    file->mount().Learn(FillWay::kFaults);
    file = nullptr;
    ASSERT_THAT(table.List(), SizeIs(1));
    EXPECT_EQ(table.List()[0].probe.way(), ReadingWay::kRead);
    ASSERT_EQ(umount2(mount_point_.path().c_str(), 0), 0);
    MountIt();
    file = open_in();
    if (file->identity().device != device) continue;
    const std::vector<MountTable::Seen> seen = table.List();
    ASSERT_THAT(seen, SizeIs(1));
    EXPECT_NE(seen[0].probe.way(), ReadingWay::kRead);
    EXPECT_EQ(seen[0].files_residency_unknown, 0u);
    // On kernels before 6.8 only the probe is made anew.
    if (!probe.mount.mount_id.has_value()) return;
    EXPECT_EQ(seen[0].files_opened, 1u);
    EXPECT_EQ(file->mount().fill_way(), FillWay::kUnknown);
    return;
  }
  FAIL() << "no number was given again";
}

TEST_F(RemountedTest, WhatIsNotMountedAnyMoreIsNotListed) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, Open(mount_point_.File("shard")));
    if (!file->probe().mount.mount_id.has_value()) {
      GTEST_SKIP() << "this kernel (before 6.8) has no unique mount ids";
    }
    // An open file keeps it.
    ASSERT_EQ(umount2(mount_point_.path().c_str(), MNT_DETACH), 0);
    EXPECT_THAT(table_.List(), SizeIs(1));
  }
  EXPECT_THAT(table_.List(), IsEmpty());
}

TEST_F(MountTableTest, FailsForWhatIsNotOpen) { EXPECT_FALSE(table_.FactsOf(-1).ok()); }

}  // namespace
}  // namespace forestage
