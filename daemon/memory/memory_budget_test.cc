// Trees as kernels show them, small and with realistic figures.
#include "daemon/memory/memory_budget.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/temporary_directory_for_test.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kV2Mount[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
constexpr char kV1Mount[] =
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

class MemoryBudgetTest : public ::testing::Test {
 protected:
  void WriteMeminfo(uint64_t total, uint64_t available) {
    root_.Write("proc/meminfo", absl::StrCat("MemTotal: ", total / kKiB,
                                             " kB\nMemAvailable: ", available / kKiB, " kB\n"));
  }
  void WriteMembership(absl::string_view cgroup, absl::string_view mountinfo) {
    root_.Write("proc/self/cgroup", cgroup);
    root_.Write("proc/self/mountinfo", mountinfo);
  }
  // Files of one cgroup, by name.
  void WriteGroup(absl::string_view directory, const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) root_.Write(absl::StrCat(directory, "/", name), text);
  }
  MemoryReading Read(MemoryBudget::Options options = {}) {
    options.root = root_.path();
    return MemoryBudget(std::move(options)).Read();
  }

  const TemporaryDirectoryForTest root_;
};

TEST_F(MemoryBudgetTest, ANodeWithoutCgroupLimitsIsBoundByMemAvailable) {
  WriteMeminfo(512 * kGiB, 400 * kGiB);
  WriteMembership("0::/\n", kV2Mount);
  root_.MakeDirectory("sys/fs/cgroup");
  const MemoryReading reading = Read();
  EXPECT_THAT(reading.unknown, IsEmpty());
  ASSERT_THAT(reading.bounds, SizeIs(1));
  EXPECT_EQ(reading.bounds[0].kind, MemoryBoundKind::kNode);
  EXPECT_EQ(reading.bounds[0].limit_bytes, 512 * kGiB);
  EXPECT_EQ(reading.bounds[0].used_bytes, 112 * kGiB);
  EXPECT_EQ(reading.bounds[0].headroom_bytes, 16 * kGiB);
  EXPECT_EQ(reading.bounds[0].available_bytes(), 384 * kGiB);
}

TEST_F(MemoryBudgetTest, V2CacheThatCanBeTakenBackIsNotInUse) {
  // 68.9 of 70 GiB are charged, nearly all of it clean cache of files.
  WriteMeminfo(512 * kGiB, 400 * kGiB);
  WriteMembership("0::/svc\n", kV2Mount);
  WriteGroup(
      "sys/fs/cgroup/svc",
      {{"memory.max", absl::StrCat(70 * kGiB, "\n")},
       {"memory.high", "max\n"},
       {"memory.current", absl::StrCat(70 * kGiB - 1126 * kMiB, "\n")},
       {"memory.stat",
        absl::StrCat("anon ", 2 * kGiB, "\nfile ", 66 * kGiB, "\nshmem ", kGiB, "\nfile_dirty ",
                     512 * kMiB, "\nfile_writeback ", 256 * kMiB, "\ninactive_file ", 40 * kGiB,
                     "\nactive_file ", 24 * kGiB, "\nunevictable ", kGiB, "\n")}});
  const MemoryReading reading = Read();
  EXPECT_THAT(reading.unknown, ElementsAre());
  ASSERT_THAT(reading.bounds, SizeIs(2));
  const MemoryBound& bound = reading.bounds[1];
  EXPECT_EQ(bound.name, "memory.max of cgroup /sys/fs/cgroup/svc");
  // Neither dirty pages, nor those being written, nor shared memory or locked pages, which are on
  // other lists.
  const uint64_t reclaimable = 64 * kGiB - 768 * kMiB;
  EXPECT_EQ(bound.used_bytes, 70 * kGiB - 1126 * kMiB - reclaimable);
  EXPECT_EQ(bound.file_bytes_max, 66 * kGiB);
  EXPECT_EQ(bound.headroom_bytes, 7 * kGiB);
}

TEST_F(MemoryBudgetTest, V2EveryAncestorAndTheThrottleBound) {
  WriteMembership("0::/pods/pod/ctr\n", kV2Mount);
  const std::string stat = "inactive_file 0\nactive_file 0\nfile 0\n";
  WriteGroup("sys/fs/cgroup/pods/pod/ctr", {{"memory.max", "max\n"},
                                            {"memory.high", absl::StrCat(30 * kGiB, "\n")},
                                            {"memory.current", absl::StrCat(kGiB, "\n")},
                                            {"memory.stat", stat}});
  WriteGroup("sys/fs/cgroup/pods/pod", {{"memory.max", absl::StrCat(20 * kGiB, "\n")},
                                        {"memory.high", "max\n"},
                                        {"memory.current", absl::StrCat(5 * kGiB, "\n")},
                                        {"memory.stat", stat}});
  // The controller is not on here, and the root has no limits.
  root_.MakeDirectory("sys/fs/cgroup/pods");
  const MemoryReading reading = Read({.root = "", .headroom = *MemoryHeadroom::Parse("0")});
  ASSERT_THAT(reading.bounds, SizeIs(2));
  EXPECT_EQ(reading.bounds[0].name, "memory.high of cgroup /sys/fs/cgroup/pods/pod/ctr");
  EXPECT_EQ(reading.bounds[0].available_bytes(), 29 * kGiB);
  EXPECT_EQ(reading.bounds[1].name, "memory.max of cgroup /sys/fs/cgroup/pods/pod");
  EXPECT_EQ(reading.bounds[1].available_bytes(), 15 * kGiB);
  // There is no /proc/meminfo in this tree.
  EXPECT_THAT(reading.unknown, ElementsAre(HasSubstr("memory of this node")));
}

TEST_F(MemoryBudgetTest, V2InANamespaceSaysThatMoreMayBeAbove) {
  // Inside a container the root of the namespace is a group like others, with a limit file.
  WriteMembership("0::/\n", kV2Mount);
  WriteGroup("sys/fs/cgroup", {{"memory.max", absl::StrCat(8 * kGiB, "\n")},
                               {"memory.high", "max\n"},
                               {"memory.current", absl::StrCat(kGiB, "\n")},
                               {"memory.stat", "file 0\n"}});
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(1));
  EXPECT_EQ(reading.bounds[0].name, "memory.max of cgroup /sys/fs/cgroup");
  EXPECT_THAT(reading.unknown, Contains(HasSubstr("above /sys/fs/cgroup")));
}

TEST_F(MemoryBudgetTest, SwapAddsNoRoom) {
  // Pages of files are never swapped out; room in swap helps only what else the group has.
  root_.Write("proc/meminfo",
              "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nMemAvailable: 4194304 kB\n"
              "SwapTotal: 67108864 kB\nSwapFree: 67108864 kB\nZswap: 1024 kB\n");
  WriteMembership("0::/svc\n", kV2Mount);
  WriteGroup("sys/fs/cgroup/svc",
             {{"memory.max", absl::StrCat(2 * kGiB, "\n")},
              {"memory.high", "max\n"},
              {"memory.swap.max", "max\n"},
              {"memory.swap.high", "max\n"},
              {"memory.swap.current", absl::StrCat(kGiB, "\n")},
              {"memory.zswap.current", absl::StrCat(512 * kMiB, "\n")},
              {"memory.current", absl::StrCat(kGiB, "\n")},
              {"memory.stat", absl::StrCat("anon ", kGiB, "\nfile 0\nswapcached ", 64 * kMiB,
                                           "\ninactive_anon ", kGiB, "\n")}});
  const MemoryReading reading = Read({.root = "", .headroom = *MemoryHeadroom::Parse("0")});
  ASSERT_THAT(reading.bounds, SizeIs(2));
  EXPECT_EQ(reading.bounds[0].available_bytes(), 4 * kGiB);
  EXPECT_EQ(reading.bounds[1].available_bytes(), kGiB);
}

TEST_F(MemoryBudgetTest, V2OutsideOfTheNamespacesRootIsFoundOrSaid) {
  // As in a container whose process was moved, or whose cgroup mount is of another namespace.
  WriteMembership("0::/../neighbour\n", kV2Mount);
  root_.MakeDirectory("sys/fs/cgroup");
  EXPECT_THAT(Read().unknown, Contains(AllOf(HasSubstr("cgroup /../neighbour (version 2)"),
                                             HasSubstr("no mount shows it"))));
  // A mount of the namespace above shows it, and its limit counts.
  WriteMembership("0::/../neighbour\n",
                  absl::StrCat(kV2Mount, "44 23 0:26 /.. /host/cgroup rw - cgroup2 cgroup2 rw\n"));
  WriteGroup("host/cgroup/neighbour", {{"memory.max", absl::StrCat(3 * kGiB, "\n")},
                                       {"memory.high", "max\n"},
                                       {"memory.current", "0\n"},
                                       {"memory.stat", "file 0\n"}});
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(1));
  EXPECT_EQ(reading.bounds[0].name, "memory.max of cgroup /host/cgroup/neighbour");
  EXPECT_EQ(reading.bounds[0].limit_bytes, 3 * kGiB);
}

TEST_F(MemoryBudgetTest, V2NestedGroupsBoundByTheTightestWhateverItsLevel) {
  WriteMembership("0::/a/b/c/d\n", kV2Mount);
  const auto write = [&](const std::string& directory, const std::string& max,
                         const std::string& high, uint64_t current) {
    WriteGroup(directory, {{"memory.max", max + "\n"},
                           {"memory.high", high + "\n"},
                           {"memory.current", absl::StrCat(current, "\n")},
                           {"memory.stat", "inactive_file 0\nactive_file 0\nfile 0\n"}});
  };
  write("sys/fs/cgroup/a/b/c/d", "max", "max", kGiB);
  write("sys/fs/cgroup/a/b/c", absl::StrCat(50 * kGiB), absl::StrCat(40 * kGiB), 2 * kGiB);
  write("sys/fs/cgroup/a/b", "max", "max", 30 * kGiB);
  write("sys/fs/cgroup/a", absl::StrCat(60 * kGiB), "max", 31 * kGiB);
  const MemoryReading reading = Read({.root = "", .headroom = *MemoryHeadroom::Parse("0")});
  std::map<std::string, uint64_t> available;
  for (const MemoryBound& bound : reading.bounds) available[bound.name] = bound.available_bytes();
  EXPECT_EQ(available, (std::map<std::string, uint64_t>{
                           {"memory.max of cgroup /sys/fs/cgroup/a/b/c", 48 * kGiB},
                           {"memory.high of cgroup /sys/fs/cgroup/a/b/c", 38 * kGiB},
                           {"memory.max of cgroup /sys/fs/cgroup/a", 29 * kGiB}}));
}

TEST_F(MemoryBudgetTest, V1CountsDescendantsAndStopsAtAGroupThatDoesNot) {
  WriteMembership("4:memory:/a/b/c\n0::/\n", kV1Mount);
  const std::string stat =
      absl::StrCat("cache 1\ninactive_file 1\nactive_file 1\nhierarchical_memory_limit ", 10 * kGiB,
                   "\ntotal_cache ", 3 * kGiB, "\ntotal_dirty ", kGiB / 2, "\ntotal_writeback 0",
                   "\ntotal_inactive_file ", kGiB, "\ntotal_active_file ", kGiB, "\n");
  const std::string usage = absl::StrCat(4 * kGiB, "\n");
  WriteGroup("sys/fs/cgroup/memory/a/b/c", {{"memory.limit_in_bytes", "9223372036854771712\n"},
                                            {"memory.usage_in_bytes", usage},
                                            {"memory.use_hierarchy", "1\n"},
                                            {"memory.stat", stat}});
  WriteGroup("sys/fs/cgroup/memory/a/b", {{"memory.limit_in_bytes", absl::StrCat(10 * kGiB, "\n")},
                                          {"memory.usage_in_bytes", usage},
                                          {"memory.use_hierarchy", "1\n"},
                                          {"memory.stat", stat}});
  WriteGroup("sys/fs/cgroup/memory/a", {{"memory.limit_in_bytes", absl::StrCat(kGiB, "\n")},
                                        {"memory.usage_in_bytes", usage},
                                        {"memory.use_hierarchy", "0\n"},
                                        {"memory.stat", stat}});
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(1));
  const MemoryBound& bound = reading.bounds[0];
  EXPECT_EQ(bound.name, "memory.limit_in_bytes of cgroup /sys/fs/cgroup/memory/a/b");
  EXPECT_EQ(bound.used_bytes, 4 * kGiB - (2 * kGiB - kGiB / 2));
  EXPECT_EQ(bound.file_bytes_max, 3 * kGiB);
}

TEST_F(MemoryBudgetTest, V1TellsTheLeastLimitAboveWhatIsShown) {
  WriteMembership("4:memory:/docker/abc\n",
                  "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  WriteGroup("sys/fs/cgroup/memory",
             {{"memory.limit_in_bytes", absl::StrCat(64 * kGiB, "\n")},
              {"memory.usage_in_bytes", absl::StrCat(kGiB, "\n")},
              {"memory.stat", absl::StrCat("hierarchical_memory_limit ", 16 * kGiB, "\n")}});
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(2));
  EXPECT_EQ(reading.bounds[0].limit_bytes, 64 * kGiB);
  EXPECT_EQ(reading.bounds[1].limit_bytes, 16 * kGiB);
  EXPECT_THAT(reading.bounds[1].name, HasSubstr("hierarchical_memory_limit"));
}

TEST_F(MemoryBudgetTest, AHybridSetUpCountsTheVersionThatHasTheController) {
  WriteMembership(
      "4:memory:/svc\n0::/svc\n",
      absl::StrCat(kV1Mount, "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 c rw\n"));
  WriteGroup("sys/fs/cgroup/memory/svc", {{"memory.limit_in_bytes", absl::StrCat(kGiB, "\n")},
                                          {"memory.usage_in_bytes", "0\n"},
                                          {"memory.stat", "total_cache 0\n"}});
  root_.MakeDirectory("sys/fs/cgroup/unified/svc");
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(1));
  EXPECT_EQ(reading.bounds[0].name, "memory.limit_in_bytes of cgroup /sys/fs/cgroup/memory/svc");
  // Only the missing meminfo.
  EXPECT_THAT(reading.unknown, SizeIs(1));
}

TEST_F(MemoryBudgetTest, AMountPointUnderAnotherMountIsPassedOver) {
  WriteMembership("0::/svc\n",
                  absl::StrCat(kV2Mount, "50 23 0:26 / /hidden rw - cgroup2 cgroup2 rw\n"));
  WriteGroup("sys/fs/cgroup/svc", {{"memory.max", absl::StrCat(kGiB, "\n")},
                                   {"memory.current", "0\n"},
                                   {"memory.stat", "file 0\n"}});
  EXPECT_THAT(Read().bounds, SizeIs(1));
}

TEST_F(MemoryBudgetTest, WhatCannotBeReadIsToldAndNoError) {
  // Nothing at all.
  MemoryReading reading = Read();
  EXPECT_THAT(reading.bounds, IsEmpty());
  EXPECT_THAT(reading.unknown,
              ElementsAre(HasSubstr("meminfo"), HasSubstr("cgroups of the daemon")));

  // Garbage, a directory where a file should be, a cgroup that no mount shows.
  root_.Write("proc/meminfo", std::string("\0\xff MemTotal", 11));
  WriteMembership("0::/svc\n4:memory:/x\n", kV2Mount);
  root_.MakeDirectory("sys/fs/cgroup/svc/memory.max");
  root_.Write("sys/fs/cgroup/svc/memory.high", "lots\n");
  reading = Read();
  EXPECT_THAT(reading.bounds, IsEmpty());
  EXPECT_THAT(reading.unknown,
              AllOf(Contains(HasSubstr("/proc/meminfo has no MemTotal")),
                    Contains("memory.max of cgroup /sys/fs/cgroup/svc"),
                    Contains("memory.high of cgroup /sys/fs/cgroup/svc"),
                    Contains(HasSubstr("cgroup /x (version 1): no mount shows it"))));
}

TEST_F(MemoryBudgetTest, ALimitWhoseUseIsUnknownStillBounds) {
  WriteMembership("0::/svc\n", kV2Mount);
  WriteGroup("sys/fs/cgroup/svc", {{"memory.max", absl::StrCat(8 * kGiB, "\n")}});
  const MemoryReading reading = Read();
  ASSERT_THAT(reading.bounds, SizeIs(1));
  EXPECT_EQ(reading.bounds[0].available_bytes(), 7 * kGiB);
  EXPECT_EQ(reading.bounds[0].file_bytes_max, kNoMemoryLimit);
  EXPECT_THAT(reading.unknown, Contains("use of cgroup /sys/fs/cgroup/svc"));
}

TEST_F(MemoryBudgetTest, FiguresThatContradictEachOtherNeverWrapAround) {
  WriteMeminfo(kGiB, 2 * kGiB);
  WriteMembership("0::/svc\n", kV2Mount);
  // Read one after the other, they can be of different moments.
  WriteGroup("sys/fs/cgroup/svc", {{"memory.max", absl::StrCat(kGiB, "\n")},
                                   {"memory.current", absl::StrCat(3 * kGiB, "\n")},
                                   {"memory.stat",
                                    "inactive_file 18446744073709551615\nactive_file "
                                    "18446744073709551615\nfile_dirty 5\nfile 1\n"}});
  const MemoryReading reading = Read({.root = "", .headroom = *MemoryHeadroom::Parse("0")});
  ASSERT_THAT(reading.bounds, SizeIs(2));
  EXPECT_EQ(reading.bounds[0].used_bytes, 0u);
  EXPECT_EQ(reading.bounds[1].used_bytes, 0u);
  MemoryBound over;
  over.limit_bytes = kGiB;
  over.used_bytes = 2 * kGiB;
  over.headroom_bytes = kGiB;
  EXPECT_EQ(over.available_bytes(), 0u);
}

TEST_F(MemoryBudgetTest, EachReadingIsNew) {
  WriteMeminfo(8 * kGiB, 8 * kGiB);
  const MemoryBudget budget({.root = root_.path(), .headroom = {}});
  EXPECT_EQ(budget.Read().bounds[0].used_bytes, 0u);
  WriteMeminfo(8 * kGiB, 2 * kGiB);
  EXPECT_EQ(budget.Read().bounds[0].used_bytes, 6 * kGiB);
}

TEST_F(MemoryBudgetTest, TheSettingBoundsExactly) {
  WriteMeminfo(8 * kGiB, 8 * kGiB);
  const MemoryReading reading = Read({.root = "", .headroom = {}, .limit_bytes = kGiB});
  ASSERT_THAT(reading.bounds, SizeIs(2));
  EXPECT_EQ(reading.bounds[1].kind, MemoryBoundKind::kSetting);
  EXPECT_EQ(reading.bounds[1].available_bytes(), kGiB);
}

TEST(MemoryBudgetOfThisMachineTest, IsBoundAtLeastByTheNode) {
  const MemoryReading reading = MemoryBudget({}).Read();
  ASSERT_FALSE(reading.bounds.empty());
  EXPECT_EQ(reading.bounds[0].kind, MemoryBoundKind::kNode);
  for (const MemoryBound& bound : reading.bounds) {
    EXPECT_GT(bound.limit_bytes, 0u) << bound.name;
    EXPECT_LE(bound.available_bytes(), bound.limit_bytes) << bound.name;
  }
}

}  // namespace
}  // namespace forestage
