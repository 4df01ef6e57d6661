#include "common/mount_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "common/cached_bytes.h"
#include "common/child_process.h"
#include "common/errno_status.h"
#include "common/seccomp_for_test.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uid_t kStranger = 65533;
constexpr uint64_t kFileBytes = 24 * kMiB;

UniqueFd OpenFile(const std::string& path, int flags = O_RDONLY) {
  return UniqueFd(open(path.c_str(), flags | O_CLOEXEC, 0644));
}

class MountProbeTest : public ::testing::Test {
 protected:
  // On a disk, cold.
  std::string WriteCold(uint64_t bytes = kFileBytes) {
    const std::string path = directory_.File("file");
    directory_.Write("file", std::string(bytes, 'x'));
    const UniqueFd fd = OpenFile(path);
    EXPECT_EQ(fsync(fd.get()), 0);
    EXPECT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    return path;
  }
  static absl::StatusOr<MountProbe> Probe(const std::string& path, bool active = false) {
    return ProbeFile(OpenFile(path).get(), {.active = active});
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
};

TEST_F(MountProbeTest, APassiveProbeLeavesAColdFileCold) {
  const std::string path = WriteCold();
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path));
  EXPECT_EQ(probe.mapping.answer, Answer::kYes);
  EXPECT_EQ(probe.populate.answer, Answer::kYes);
  EXPECT_EQ(probe.mincore.answer, Answer::kYes);
  EXPECT_THAT(probe.mincore.reason, HasSubstr("missing"));
  EXPECT_EQ(probe.advice.answer, Answer::kUnknown);
  EXPECT_EQ(probe.advice_bytes_measured, std::nullopt);
  EXPECT_EQ(probe.way(), ReadingWay::kAdviseThenLook);
  const UniqueFd fd = OpenFile(path);
  void* address = mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  std::string pages(kFileBytes / PageBytes(), '\0');
  ASSERT_EQ(mincore(address, kFileBytes, reinterpret_cast<unsigned char*>(pages.data())), 0);
  munmap(address, kFileBytes);
  for (const char page : pages) ASSERT_EQ(page & 1, 0);
}

TEST_F(MountProbeTest, AnActiveProbeMeasuresWhatOneAdviceBringsIn) {
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(WriteCold(), true));
  EXPECT_EQ(probe.advice.answer, Answer::kYes) << probe.advice.reason;
  ASSERT_TRUE(probe.advice_bytes_measured.has_value());
  EXPECT_GE(*probe.advice_bytes_measured, probe.mount.advice_bytes_max);
  EXPECT_EQ(probe.second_open.answer, Answer::kYes) << probe.second_open.reason;
  EXPECT_EQ(probe.mincore.answer, Answer::kYes) << probe.mincore.reason;
}

TEST_F(MountProbeTest, AnActiveProbeOfAWarmFileMakesAPartOfItColdToMeasure) {
  // Neither a multiple of a folio nor of a page.
  const std::string path = WriteCold(kFileBytes + 12345);
  std::string buffer(kFileBytes, '\0');
  ASSERT_EQ(pread(OpenFile(path).get(), buffer.data(), kFileBytes, 0),
            static_cast<ssize_t>(kFileBytes));
  ASSERT_EQ(pread(OpenFile(path).get(), buffer.data(), kFileBytes, 12345),
            static_cast<ssize_t>(kFileBytes));
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, true));
  EXPECT_EQ(probe.advice.answer, Answer::kYes) << probe.advice.reason;
  EXPECT_GE(probe.advice_bytes_measured, probe.mount.advice_bytes_max);
}

TEST_F(MountProbeTest, SaysThatAFileIsTooSmallToMeasureWith) {
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(WriteCold(4096), true));
  EXPECT_EQ(probe.advice.answer, Answer::kUnknown);
  EXPECT_THAT(probe.advice.reason, HasSubstr("small"));
}

TEST_F(MountProbeTest, NamesTheMount) {
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(WriteCold(4096)));
  struct stat attributes = {};
  ASSERT_EQ(stat(directory_.path().c_str(), &attributes), 0);
  EXPECT_EQ(probe.mount.device, attributes.st_dev);
  EXPECT_THAT(directory_.path(), StartsWith(probe.mount.mount_point));
  EXPECT_THAT(probe.mount.type, ::testing::Not(HasSubstr("0x")));
  EXPECT_FALSE(probe.mount.memory);
}

TEST_F(MountProbeTest, NamesTheTypeOfAMountThatIsNotInItsNamespace) {
  const std::string path = WriteCold(4096);
  ASSERT_OK_AND_ASSIGN(
      const MountFacts facts,
      ReadMountFacts(OpenFile(path).get(), {.mountinfo_path = directory_.File("nothing")}));
  EXPECT_EQ(facts.mount_point, "");
  EXPECT_NE(facts.type, "");
}

TEST_F(MountProbeTest, FindsAMountPointWithASpaceByItsDevice) {
  const std::string path = WriteCold(4096);
  struct stat attributes = {};
  ASSERT_EQ(stat(path.c_str(), &attributes), 0);
  directory_.Write("mountinfo",
                   absl::StrCat("1 2 ", major(attributes.st_dev), ":", minor(attributes.st_dev),
                                " / /my\\040models rw shared:1 - fuse.some some rw\nbroken\n"));
  ASSERT_OK_AND_ASSIGN(
      const MountFacts facts,
      ReadMountFacts(OpenFile(path).get(), {.mountinfo_path = directory_.File("mountinfo")}));
  EXPECT_EQ(facts.mount_point, "/my models");
  EXPECT_EQ(facts.type, "fuse.some");
}

TEST_F(MountProbeTest, KnowsFilesInMemory) {
  TemporaryDirectoryForTest memory("/dev/shm");
  memory.Write("file", std::string(1 * kMiB, 'x'));
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(memory.File("file"), true));
  EXPECT_EQ(probe.mount.type, "tmpfs");
  EXPECT_TRUE(probe.mount.memory);
  EXPECT_EQ(probe.mincore.answer, Answer::kYes);
  EXPECT_EQ(probe.advice.answer, Answer::kYes);
  EXPECT_EQ(probe.second_open.answer, Answer::kYes) << probe.second_open.reason;
}

TEST_F(MountProbeTest, AStrangerIsNotToldWhatIsInMemory) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const std::string path = WriteCold();
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  for (const bool active : {false, true}) {
    ChildProcess child([&] {
      ASSERT_EQ(syscall(SYS_setresuid, kStranger, kStranger, kStranger), 0);
      ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, active));
      EXPECT_EQ(probe.rights.answer, Answer::kNo);
      EXPECT_EQ(probe.mincore.answer, Answer::kNo);
      EXPECT_THAT(probe.mincore.reason, HasSubstr("uid 0"));
      EXPECT_EQ(probe.advice.answer, Answer::kUnknown);
      EXPECT_EQ(probe.second_open.answer, active ? Answer::kUnknown : Answer::kYes);
      EXPECT_EQ(probe.way(), ReadingWay::kAdviseThenPopulate);
    });
    EXPECT_EQ(child.Wait(), 0) << "active " << active;
  }
}

TEST_F(MountProbeTest, AStrangerThatMayWriteTheFileIsTold) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const std::string path = WriteCold();
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  ChildProcess child([&] {
    ASSERT_EQ(syscall(SYS_setresuid, kStranger, kStranger, kStranger), 0);
    ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, true));
    EXPECT_EQ(probe.mincore.answer, Answer::kYes);
    EXPECT_EQ(probe.advice.answer, Answer::kYes) << probe.advice.reason;
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MountProbeTest, NamesWhyCachestatIsRefused) {
  const std::string path = WriteCold();
  for (const int error : {EPERM, ENOSYS}) {
    ChildProcess child([&] {
      ASSERT_TRUE(ForbidForTest(kCachestatCall, error));
      ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, true));
      EXPECT_EQ(probe.cachestat.answer, Answer::kNo);
      EXPECT_THAT(probe.cachestat.reason, HasSubstr(error == EPERM ? "EPERM" : "ENOSYS"));
    });
    EXPECT_EQ(child.Wait(), 0) << error;
  }
}

TEST_F(MountProbeTest, DoesWithoutPopulatingOnAnOldKernel) {
  const std::string path = WriteCold();
  ChildProcess child([&] {
    ASSERT_TRUE(ForbidForTest(SYS_madvise, EINVAL));
    ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path));
    EXPECT_EQ(probe.populate.answer, Answer::kNo);
    EXPECT_THAT(probe.populate.reason, HasSubstr("5.14"));
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MountProbeTest, DoesNotBelieveMincoreThatFails) {
  const std::string path = WriteCold();
  ChildProcess child([&] {
    ASSERT_TRUE(ForbidForTest(SYS_mincore, ENOSYS));
    ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, true));
    EXPECT_EQ(probe.mincore.answer, Answer::kNo);
    EXPECT_EQ(probe.way(), ReadingWay::kAdviseThenPopulate);
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MountProbeTest, SaysThatAnAdviceIsRefused) {
  const std::string path = WriteCold();
  ChildProcess child([&] {
    ASSERT_TRUE(ForbidForTest(SYS_fadvise64, EINVAL));
    ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(path, true));
    EXPECT_EQ(probe.advice.answer, Answer::kNo);
    EXPECT_THAT(probe.advice.reason, HasSubstr("posix_fadvise"));
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MountProbeTest, ReadsWhereNothingCanBeMapped) {
  const UniqueFd fd = OpenFile(WriteCold());
  ASSERT_OK_AND_ASSIGN(MountFacts facts, ReadMountFacts(fd.get()));
  for (const bool active : {false, true}) {
    const MountProbe probe =
        ProbeMount(fd.get(), facts, ErrnoStatus(ENODEV, "mmap"), {.active = active});
    EXPECT_EQ(probe.mapping.answer, Answer::kNo);
    EXPECT_THAT(probe.mapping.reason, HasSubstr("ENODEV"));
    EXPECT_EQ(probe.mincore.answer, Answer::kNo);
    EXPECT_EQ(probe.way(), ReadingWay::kRead);
  }
}

TEST_F(MountProbeTest, AnEmptyFileTellsNothing) {
  ASSERT_OK_AND_ASSIGN(const MountProbe probe, Probe(WriteCold(0), true));
  EXPECT_EQ(probe.mapping.answer, Answer::kUnknown);
  EXPECT_EQ(probe.mincore.answer, Answer::kUnknown);
}

TEST_F(MountProbeTest, IsAnErrorForWhatIsNotOpen) { EXPECT_FALSE(ProbeFile(-1).ok()); }

}  // namespace
}  // namespace forestage
