#include "daemon/storage/mount_table.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

TEST_F(MountTableTest, FailsForWhatIsNotOpen) { EXPECT_FALSE(table_.FactsOf(-1).ok()); }

}  // namespace
}  // namespace forestage
