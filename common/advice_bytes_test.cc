#include "common/advice_bytes.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "common/temporary_directory_for_test.h"
#include "common/units.h"

namespace forestage {
namespace {

// A /sys of our own.
class AdviceBytesTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, absl::string_view text) {
    const std::filesystem::path file = sysfs_.File(path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  uint64_t Of(unsigned major_number, unsigned minor_number) {
    return AdviceBytesMax(
        ReadReadAheadSettings(makedev(major_number, minor_number), sysfs_.path()));
  }

  TemporaryDirectoryForTest sysfs_{kDiskForTest};
};

TEST_F(AdviceBytesTest, TakesTheReadAheadOfTheBackingDevice) {
  Write("class/bdi/0:52/read_ahead_kb", "1024");
  EXPECT_EQ(Of(0, 52), 1 * kMiB);
}

TEST_F(AdviceBytesTest, IsTheKernelsDefaultWhereNothingIsKnown) {
  EXPECT_EQ(Of(0, 99), kAdviceBytesDefault);
  Write("class/bdi/0:7/read_ahead_kb", "nonsense");
  EXPECT_EQ(Of(0, 7), kAdviceBytesDefault);
}

TEST_F(AdviceBytesTest, IsTheKernelsDefaultWhereReadAheadIsOff) {
  Write("class/bdi/0:7/read_ahead_kb", "0");
  EXPECT_EQ(Of(0, 7), kAdviceBytesDefault);
}

TEST_F(AdviceBytesTest, ADiskTakesItsLargestRequestWhereThatIsMore) {
  Write("class/bdi/259:0/read_ahead_kb", "128");
  Write("dev/block/259:0/queue/max_sectors_kb", "1280");
  EXPECT_EQ(Of(259, 0), 1280 * kKiB);
}

TEST_F(AdviceBytesTest, APartitionHasTheQueueOfItsDisk) {
  Write("devices/nvme0n1/queue/read_ahead_kb", "512");
  Write("devices/nvme0n1/queue/max_sectors_kb", "256");
  Write("devices/nvme0n1/nvme0n1p2/partition", "2");
  std::filesystem::create_directories(sysfs_.File("dev/block"));
  std::filesystem::create_directory_symlink("../../devices/nvme0n1/nvme0n1p2",
                                            sysfs_.File("dev/block/259:2"));
  EXPECT_EQ(Of(259, 2), 512 * kKiB);
}

TEST_F(AdviceBytesTest, NamesTheFileThatChangesIt) {
  Write("class/bdi/0:52/read_ahead_kb", "1024");
  EXPECT_EQ(ReadReadAheadSettings(makedev(0, 52), sysfs_.path()).read_ahead_path,
            sysfs_.File("class/bdi/0:52/read_ahead_kb"));
  EXPECT_EQ(ReadReadAheadSettings(makedev(0, 53), sysfs_.path()).read_ahead_path, "");
}

TEST_F(AdviceBytesTest, TellsWhatTheDevicePrefers) {
  Write("dev/block/259:0/queue/optimal_io_size", "65536");
  const ReadAheadSettings settings = ReadReadAheadSettings(makedev(259, 0), sysfs_.path());
  EXPECT_EQ(settings.optimal_io_bytes, 64 * kKiB);
  EXPECT_EQ(settings.request_bytes_max, std::nullopt);
}

TEST_F(AdviceBytesTest, IsBoundedAndAMultipleOfPages) {
  Write("class/bdi/0:1/read_ahead_kb", "18446744073709551615");
  EXPECT_EQ(Of(0, 1), kAdviceBytesCap);
  Write("class/bdi/0:2/read_ahead_kb", "1");
  EXPECT_EQ(Of(0, 2), PageBytes());
  Write("class/bdi/0:3/read_ahead_kb", "131");
  EXPECT_EQ(Of(0, 3) % PageBytes(), 0u);
}

}  // namespace
}  // namespace forestage
