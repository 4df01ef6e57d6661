#include "client/cli/doctor_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/sysmacros.h>

#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

DoctorFindings Findings() {
  DoctorFindings findings;
  findings.directory = "/models/a b";
  findings.memlock_bytes_max = 8 * kMiB;
  ExaminedMount& mount = findings.checkpoint.mounts.emplace_back();
  mount.device = makedev(0, 52);
  mount.files = 3;
  mount.tested_file = "model-00002.safetensors";
  mount.probe.mount.device = mount.device;
  mount.probe.mount.type = "fuse.some";
  mount.probe.mount.mount_point = "/models";
  mount.probe.mount.advice_bytes_max = 128 * kKiB;
  mount.probe.advice_bytes_measured = 128 * kKiB;
  mount.probe.mapping = {Answer::kYes, "a file was mapped"};
  mount.probe.mincore = {Answer::kYes, "this process owns the file"};
  mount.weaknesses = WeaknessesOf(mount.probe);
  return findings;
}

TEST(DoctorTextTest, NamesTheMountItsVerdictsAndWhatToChange) {
  EXPECT_THAT(
      DoctorText(Findings()),
      AllOf(HasSubstr("/models/a%20b: "), HasSubstr("mount 0:52, fuse.some at /models: 3 files"),
            HasSubstr("advice+mincore, in pieces of 128 KiB"),
            HasSubstr("one advice brought in 128 KiB"), HasSubstr("this process owns the file"),
            HasSubstr("(small_read_ahead)"), HasSubstr("change: echo 8192 > /sys/class/bdi/0:52/"),
            HasSubstr("daemon: not asked"), HasSubstr("io_uring here: yes")));
}

TEST(DoctorTextTest, SaysThatFaultsAreTheWay) {
  DoctorFindings findings = Findings();
  findings.checkpoint.mounts[0].probe.faults = {Answer::kYes, "a fault brought in 2MiB of 2MiB"};
  EXPECT_THAT(DoctorText(findings),
              AllOf(HasSubstr("way of reading: faults, in blocks of 2.00 MiB"),
                    HasSubstr("a page fault brings in 2 MiB")));
  EXPECT_EQ(DoctorJson(findings)["mounts"][0]["way"], "faults");
}

TEST(DoctorTextTest, SaysThatAMountWasNotTested) {
  DoctorFindings findings = Findings();
  findings.checkpoint.mounts[0].status = absl::DeadlineExceededError("has not answered");
  EXPECT_THAT(DoctorText(findings),
              AllOf(HasSubstr("NOT TESTED: has not answered"), Not(HasSubstr("WEAK"))));
  EXPECT_EQ(DoctorJson(findings)["mounts"][0]["error"], "has not answered");
}

TEST(DoctorJsonTest, HasTheDocumentedKeys) {
  const Json document = DoctorJson(Findings());
  const Json& mount = document["mounts"][0];
  EXPECT_EQ(mount["device"], "0:52");
  EXPECT_EQ(mount["way"], "advice+mincore");
  EXPECT_EQ(mount["advice_bytes_measured"], 128 * kKiB);
  EXPECT_TRUE(mount["read_ahead_bytes"].is_null());
  EXPECT_THAT(mount["verdicts"], SizeIs(7));
  EXPECT_EQ(mount["verdicts"]["mincore"]["answer"], "yes");
  EXPECT_EQ(mount["weaknesses"][0]["id"], "small_read_ahead");
  EXPECT_EQ(document["process"]["memlock_bytes_max"], 8 * kMiB);
  EXPECT_TRUE(document["daemon"]["running"].is_null());
  EXPECT_EQ(document["sound"], true);
}

TEST(DoctorJsonTest, ADaemonThatMayNotBeAskedRunsAllTheSame) {
  DoctorFindings findings = Findings();
  findings.daemon = absl::PermissionDeniedError("only for administrators");
  EXPECT_EQ(DoctorJson(findings)["daemon"]["running"], true);
  findings.daemon = absl::UnavailableError("there is none");
  EXPECT_EQ(DoctorJson(findings)["daemon"]["running"], false);
}

TEST(DoctorTextTest, ShowsEveryBrokenFile) {
  DoctorFindings findings = Findings();
  EXPECT_THAT(DoctorText(findings), HasSubstr("files: may be read"));
  findings.checkpoint.headers_checked = true;
  EXPECT_THAT(DoctorText(findings), HasSubstr("files: sound"));
  findings.checkpoint.soundness = absl::InvalidArgumentError("a: cut\nb: too large");
  EXPECT_THAT(DoctorText(findings), HasSubstr("files: BROKEN:\n  a: cut\n  b: too large\n"));
  EXPECT_EQ(DoctorJson(findings)["sound"], false);
  EXPECT_EQ(DoctorJson(findings)["error"], "a: cut\nb: too large");
}

TEST(DoctorReaderTest, TheDaemonsReaderCountsAndNotThisProcess) {
  DoctorFindings findings = Findings();
  findings.io_uring = absl::PermissionDeniedError("io_uring is not available: EPERM");
  EXPECT_THAT(ReaderWeaknesses(findings), SizeIs(1));
  DaemonStatus daemon;
  daemon.reader = "io_uring";
  findings.daemon = daemon;
  EXPECT_THAT(ReaderWeaknesses(findings), IsEmpty());
  daemon.reader = "threads";
  daemon.reader_reason = "asked for by the configuration";
  findings.daemon = daemon;
  EXPECT_THAT(ReaderWeaknesses(findings), IsEmpty());
  daemon.reader_reason = "io_uring is not available; a seccomp profile forbids it";
  findings.daemon = daemon;
  ASSERT_THAT(ReaderWeaknesses(findings), SizeIs(1));
  EXPECT_EQ(ReaderWeaknesses(findings)[0].what, daemon.reader_reason);
}

TEST(DoctorReaderTest, ShowsHowTheDaemonReadsTheSameMount) {
  DoctorFindings findings = Findings();
  DaemonStatus daemon;
  daemon.reader = "threads";
  DaemonMountRow& mount = daemon.mounts.emplace_back();
  mount.device = "0:52";
  mount.way = "advice+populate";
  daemon.mounts.emplace_back().device = "8:1";
  findings.daemon = daemon;
  EXPECT_THAT(DoctorText(findings),
              AllOf(HasSubstr("from mount 0:52 by advice+populate"), Not(HasSubstr("8:1"))));
}

}  // namespace
}  // namespace forestage
