#include "daemon/storage/mount_table.h"

#include <string>
#include <vector>

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
  EXPECT_EQ(seen[0].probe.way(), ReadingWay::kAdviseThenLook);
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

TEST_F(MountTableTest, IgnoresAMountThatItHasForgotten) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path()));
  MountProbe probe = file->probe();
  probe.mount.device = 12345;
  table_.OnFileOpened(probe);
  EXPECT_THAT(table_.List(), SizeIs(1));
}

TEST_F(MountTableTest, FailsForWhatIsNotOpen) { EXPECT_FALSE(table_.FactsOf(-1).ok()); }

}  // namespace
}  // namespace forestage
