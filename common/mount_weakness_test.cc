#include "common/mount_weakness.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/sysmacros.h>

#include "common/units.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MountProbe Healthy() {
  const Verdict yes = {Answer::kYes, "seen"};
  MountProbe probe;
  probe.mount.device = makedev(0, 52);
  probe.mount.type = "xfs";
  probe.mount.read_ahead.read_ahead_path = "/sys/class/bdi/0:52/read_ahead_kb";
  probe.mount.advice_bytes_max = 8 * kMiB;
  for (Verdict* verdict : {&probe.rights, &probe.mapping, &probe.populate, &probe.mincore,
                           &probe.cachestat, &probe.second_open, &probe.advice}) {
    *verdict = yes;
  }
  return probe;
}

std::vector<std::string> Ids(const MountProbe& probe) {
  std::vector<std::string> ids;
  for (const Weakness& weakness : WeaknessesOf(probe)) {
    EXPECT_NE(weakness.what, "");
    EXPECT_NE(weakness.cost, "");
    EXPECT_NE(weakness.change, "");
    ids.push_back(weakness.id);
  }
  return ids;
}

TEST(MountWeaknessTest, AHealthyMountHasNone) {
  EXPECT_THAT(Ids(Healthy()), IsEmpty());
  MountProbe probe = Healthy();
  probe.advice_bytes_measured = 8 * kMiB;
  EXPECT_THAT(Ids(probe), IsEmpty());
}

TEST(MountWeaknessTest, WhatWasNotTestedIsNone) {
  MountProbe probe = Healthy();
  for (Verdict* verdict : {&probe.cachestat, &probe.second_open, &probe.advice}) {
    verdict->answer = Answer::kUnknown;
  }
  EXPECT_THAT(Ids(probe), IsEmpty());
}

TEST(MountWeaknessTest, SmallReadAheadComesWithTheCommandForThisMount) {
  MountProbe probe = Healthy();
  probe.mount.advice_bytes_max = 128 * kKiB;
  probe.advice_bytes_measured = 128 * kKiB;
  ASSERT_THAT(Ids(probe), ElementsAre("small_read_ahead"));
  EXPECT_EQ(WeaknessesOf(probe)[0].change, "echo 8192 > /sys/class/bdi/0:52/read_ahead_kb");
  EXPECT_THAT(WeaknessesOf(probe)[0].what, HasSubstr("128KiB"));
  probe.mount.read_ahead.read_ahead_path.clear();
  EXPECT_THAT(WeaknessesOf(probe)[0].change, HasSubstr("/sys/class/bdi/0:52/read_ahead_kb"));
}

TEST(MountWeaknessTest, WhatAnAdviceWasSeenToBringCountsMoreThanWhatIsSet) {
  MountProbe probe = Healthy();
  probe.mount.advice_bytes_max = 128 * kKiB;
  probe.advice_bytes_measured = 4 * kMiB;
  EXPECT_THAT(Ids(probe), IsEmpty());
  probe.mount.advice_bytes_max = 8 * kMiB;
  EXPECT_THAT(Ids(probe), ElementsAre("advice_cut"));
  // No more was asked for: the file is small.
  probe.advice_bytes_asked = 4 * kMiB;
  EXPECT_THAT(Ids(probe), IsEmpty());
  probe.advice = {Answer::kNo, "nothing came"};
  probe.advice_bytes_measured = 0;
  EXPECT_THAT(Ids(probe), ElementsAre("advice_ignored"));
}

TEST(MountWeaknessTest, FilesInMemoryNeedNoReadAhead) {
  MountProbe probe = Healthy();
  probe.mount.memory = true;
  probe.mount.advice_bytes_max = 128 * kKiB;
  EXPECT_THAT(Ids(probe), IsEmpty());
}

TEST(MountWeaknessTest, AStrangersFileHasOneWeaknessAndNotTwo) {
  MountProbe probe = Healthy();
  probe.mincore = {Answer::kNo, "the file belongs to uid 7"};
  probe.cachestat = {Answer::kNo, "refused (EPERM)"};
  ASSERT_THAT(Ids(probe), ElementsAre("residency_unknown"));
  EXPECT_THAT(WeaknessesOf(probe)[0].change, HasSubstr("CAP_FOWNER"));
}

TEST(MountWeaknessTest, NamesWhatElseIsMissing) {
  MountProbe probe = Healthy();
  probe.second_open.answer = Answer::kNo;
  probe.populate.answer = Answer::kNo;
  probe.cachestat.answer = Answer::kNo;
  EXPECT_THAT(Ids(probe), ElementsAre("second_open_drops_cache", "no_populate", "no_cachestat"));
}

TEST(MountWeaknessTest, WithoutMappingsNothingElseMatters) {
  MountProbe probe = Healthy();
  for (Verdict* verdict : {&probe.mapping, &probe.populate, &probe.mincore, &probe.cachestat}) {
    verdict->answer = Answer::kNo;
  }
  probe.mount.advice_bytes_max = 128 * kKiB;
  EXPECT_THAT(Ids(probe), ElementsAre("no_mappings"));
}

TEST(MountWeaknessTest, RefusedIoUringIsOne) {
  EXPECT_THAT(WeaknessesOfIoUring(absl::OkStatus()), IsEmpty());
  const std::vector<Weakness> weaknesses =
      WeaknessesOfIoUring(absl::PermissionDeniedError("io_uring: EPERM"));
  ASSERT_EQ(weaknesses.size(), 1u);
  EXPECT_EQ(weaknesses[0].id, "io_uring_refused");
  EXPECT_THAT(weaknesses[0].change, HasSubstr("io_uring_enter"));
}

}  // namespace
}  // namespace forestage
