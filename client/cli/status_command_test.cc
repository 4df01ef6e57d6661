#include "client/cli/status_command.h"

#include "absl/strings/str_cat.h"
#include "client/cli/stage_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(StatusTextTest, ShowsCheckpointsTheirSessionsAndReadErrors) {
  DaemonStatus status;
  status.version = "0.1.0";
  status.pid = 7;
  status.reader = "threads";
  status.reader_reason = "io_uring: EPERM";
  DaemonCheckpointRow& checkpoint = status.checkpoints.emplace_back();
  checkpoint.path = "/models/a b";
  checkpoint.wanted_bytes = kGiB;
  checkpoint.resident_bytes = 512 * kMiB;
  checkpoint.read_errors.push_back("x.safetensors at 4096: Input/output error");
  DaemonSessionRow& session = checkpoint.sessions.emplace_back();
  session.group = "job";
  session.local_rank = 1;
  session.local_size = 4;
  EXPECT_THAT(StatusText(status),
              AllOf(HasSubstr("forestaged 0.1.0, pid 7"), HasSubstr("io_uring: EPERM"),
                    HasSubstr("metrics: off"), HasSubstr("/models/a%20b: staging"),
                    HasSubstr("512 MiB of 1.00 GiB wanted"), HasSubstr("x.safetensors at 4096"),
                    HasSubstr("1/4"), HasSubstr("undecided")));
}

TEST(StatusTextTest, ShowsTheMountsAndHowTheyAreRead) {
  DaemonStatus status;
  DaemonMountRow& mount = status.mounts.emplace_back();
  mount.device = "0:52";
  mount.type = "fuse.some";
  mount.way = "advice+populate";
  mount.advice_bytes = 128 * kKiB;
  mount.weaknesses = {"small_read_ahead", "residency_unknown"};
  EXPECT_THAT(StatusText(status),
              AllOf(HasSubstr("(in another container)  0:52"), HasSubstr("advice+populate"),
                    HasSubstr("128 KiB"), HasSubstr("small_read_ahead, residency_unknown")));
}

TEST(StatusTextTest, SaysWhatMayBeStagedAndWhatBoundsIt) {
  DaemonStatus status;
  EXPECT_THAT(StatusText(status), Not(HasSubstr("memory")));
  status.memory_leased_bytes = 512 * kMiB;
  status.memory_available_bytes = kGiB;
  status.memory_bound = "memory.max of cgroup /sys/fs/cgroup/x 2.00 GiB - 1.00 GiB headroom";
  status.memory_unknown = {"limits of cgroups above /sys/fs/cgroup"};
  EXPECT_THAT(
      StatusText(status),
      AllOf(HasSubstr("memory: 1.00 GiB for a further checkpoint, 512 MiB leased; bound by "
                      "memory.max of cgroup /sys/fs/cgroup/x 2.00 GiB - 1.00 GiB headroom\n"),
            HasSubstr("memory: not known: limits of cgroups above /sys/fs/cgroup\n")));
}

TEST(StatusTextTest, SaysWhatUsersHaveWhereThatIsLimitedOrShared) {
  DaemonStatus status;
  status.users = {{.uid = 0, .staged_bytes = kGiB}};
  EXPECT_THAT(StatusText(status), Not(HasSubstr("uid")));
  status.user_bytes_max = 4 * kGiB;
  EXPECT_THAT(StatusText(status), HasSubstr("memory: uid 0 has 1.00 GiB staged of 4.00 GiB\n"));
  status.user_bytes_max.reset();
  status.users.push_back({.uid = 7, .staged_bytes = kMiB});
  EXPECT_THAT(StatusText(status), HasSubstr("memory: uid 7 has 1.00 MiB staged\n"));
}

TEST(StatusTextTest, AReasonOfSeveralLinesStaysOnItsOwn) {
  DaemonStatus status;
  DaemonCheckpointRow& checkpoint = status.checkpoints.emplace_back();
  checkpoint.sessions.push_back({.group = "g", .policy = "native", .reason = "one\ntwo"});
  EXPECT_THAT(StatusText(status), HasSubstr("one; two\n"));
}

TEST(StatusTextTest, ShowsRateAndTimeLeftWhileStaging) {
  DaemonStatus status;
  DaemonCheckpointRow& checkpoint = status.checkpoints.emplace_back();
  checkpoint.wanted_bytes = kGiB;
  checkpoint.resident_bytes = 512 * kMiB;
  checkpoint.bytes_per_second = 256 * kMiB;
  checkpoint.seconds_left = 2;
  EXPECT_THAT(StatusText(status), HasSubstr(", 256 MiB/s now, 2.000 s left\n"));
  checkpoint.bytes_per_second = 0;
  checkpoint.seconds_left = std::nullopt;
  EXPECT_THAT(StatusText(status), HasSubstr(", nothing comes now\n"));
  checkpoint.complete = true;
  checkpoint.seconds_left = 0;
  EXPECT_THAT(StatusText(status), AllOf(Not(HasSubstr("now")), Not(HasSubstr("left"))));
}

TEST(StatusTextTest, SaysThatNothingIsStaged) {
  EXPECT_THAT(StatusText(DaemonStatus()), HasSubstr("no checkpoint is staged"));
}

TEST(ReadErrorsOfTest, AreThoseOfTheGroupsOwnCheckpoint) {
  DaemonStatus status;
  for (const char* group : {"one", "two"}) {
    DaemonCheckpointRow& checkpoint = status.checkpoints.emplace_back();
    checkpoint.read_errors = {absl::StrCat(group, ".safetensors at 4096: EIO")};
    checkpoint.sessions.emplace_back().group = group;
  }
  EXPECT_THAT(ReadErrorsOf(status, "two"), ElementsAre("two.safetensors at 4096: EIO"));
  EXPECT_THAT(ReadErrorsOf(status, "three"), IsEmpty());
}

TEST(StageJsonTest, HasTheDocumentedKeys) {
  StagingStatus staging;
  staging.wanted_bytes = 4;
  staging.read_bytes = 3;
  staging.staging_seconds = 1.25;
  staging.resident_bytes = 2;
  EXPECT_EQ(JsonLine(StageJson(staging, {.open = 0.125, .total = 1.5})),
            "{\"bytes\":4,\"bytes_read\":3,\"seconds\":1.5,\"open_seconds\":0.125,"
            "\"staging_seconds\":1.25,\"resident_bytes\":2}\n");
}

}  // namespace
}  // namespace forestage
