#include "daemon/memory/memory_ledger.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/temporary_directory_for_test.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A node of 100 GiB of which 90 are available, headroom 10; and, where asked for, a cgroup.
class MemoryLedgerTest : public ::testing::Test {
 protected:
  MemoryLedgerTest() { WriteAvailable(90 * kGiB); }

  void WriteAvailable(uint64_t available) {
    root_.Write("proc/meminfo", absl::StrCat("MemTotal: ", 100 * kGiB / kKiB,
                                             " kB\nMemAvailable: ", available / kKiB, " kB\n"));
  }
  void WriteCgroup(uint64_t limit, uint64_t current, uint64_t files) {
    root_.Write("proc/self/cgroup", "0::/x\n");
    root_.Write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root_.Write("sys/fs/cgroup/x/memory.max", absl::StrCat(limit, "\n"));
    root_.Write("sys/fs/cgroup/x/memory.current", absl::StrCat(current, "\n"));
    root_.Write("sys/fs/cgroup/x/memory.stat",
                absl::StrCat("file ", files, "\ninactive_file ", files, "\nactive_file 0\n"));
  }
  MemoryBudget::Options Options(uint64_t limit = kNoMemoryLimit) const {
    return {.root = root_.path(), .headroom = {}, .limit_bytes = limit};
  }
  static MemoryRequest Request(const char& checkpoint, uint64_t wanted, uint64_t resident = 0) {
    return {.checkpoint = &checkpoint, .wanted_bytes = wanted, .resident_bytes = resident};
  }

  const TemporaryDirectoryForTest root_;
  // Stand for checkpoints.
  const char a_ = 'a';
  const char b_ = 'b';
};

TEST_F(MemoryLedgerTest, WhatFitsIsLeasedAndWhatDoesNotIsRefusedWithTheNumbers) {
  MemoryLedger ledger(Options());
  const MemoryAdmission fits = ledger.Admit(Request(a_, 80 * kGiB));
  EXPECT_NE(fits.lease, nullptr);
  EXPECT_EQ(ledger.leased_bytes(), 80 * kGiB);
  const MemoryAdmission refused = ledger.Admit(Request(b_, kGiB));
  EXPECT_EQ(refused.lease, nullptr);
  EXPECT_EQ(refused.bound_kind, MemoryBoundKind::kNode);
  EXPECT_EQ(refused.reason,
            "checkpoint needs 1.00 GiB of memory, 0 B available: MemTotal of this node 100.00 GiB "
            "- 10.00 GiB in use - 10.00 GiB headroom - 80.00 GiB leased to other checkpoints");
  EXPECT_EQ(ledger.leased_bytes(), 80 * kGiB);
}

TEST_F(MemoryLedgerTest, AByteTooManyIsTooMany) {
  MemoryLedger ledger(Options());
  EXPECT_FALSE(ledger.Fits(Request(a_, 80 * kGiB + 1)));
  EXPECT_EQ(ledger.Admit(Request(a_, 80 * kGiB + 1)).lease, nullptr);
  EXPECT_TRUE(ledger.Fits(Request(a_, 80 * kGiB)));
  EXPECT_EQ(ledger.leased_bytes(), 0u) << "asking takes nothing";
}

TEST_F(MemoryLedgerTest, PagesUnderLeaseAreNotReclaimableForOthers) {
  MemoryLedger ledger(Options());
  const MemoryAdmission a = ledger.Admit(Request(a_, 60 * kGiB));
  ASSERT_NE(a.lease, nullptr);
  // A is read now; the kernel calls all of it available still.
  EXPECT_FALSE(ledger.Fits(Request(b_, 30 * kGiB)));
  EXPECT_TRUE(ledger.Fits(Request(b_, 20 * kGiB)));
}

TEST_F(MemoryLedgerTest, MemoryIsFreeAgainWithTheLastHolder) {
  MemoryLedger ledger(Options());
  MemoryAdmission first = ledger.Admit(Request(a_, 60 * kGiB));
  MemoryAdmission second = ledger.Admit(Request(a_, 60 * kGiB));
  EXPECT_EQ(first.lease, second.lease) << "one checkpoint is promised its memory once";
  EXPECT_EQ(ledger.leased_bytes(), 60 * kGiB);
  first.lease = nullptr;
  EXPECT_EQ(ledger.Admit(Request(b_, 60 * kGiB)).lease, nullptr);
  second.lease = nullptr;
  EXPECT_EQ(ledger.leased_bytes(), 0u);
  EXPECT_NE(ledger.Admit(Request(b_, 60 * kGiB)).lease, nullptr);
}

TEST_F(MemoryLedgerTest, OwnPagesInMemoryAreCountedOnce) {
  // 70 of the 80 GiB are cached already: the kernel's 90 available GiB have them in, and so has
  // what is wanted.
  MemoryLedger ledger(Options());
  EXPECT_TRUE(ledger.Fits(Request(a_, 80 * kGiB, 70 * kGiB)));
  EXPECT_FALSE(ledger.Fits(Request(a_, 81 * kGiB, 70 * kGiB)));
}

TEST_F(MemoryLedgerTest, ACgroupsLimitBoundsThoughTheNodeHasMore) {
  WriteCgroup(20 * kGiB, 6 * kGiB, 4 * kGiB);
  MemoryLedger ledger(Options());
  const MemoryAdmission refused = ledger.Admit(Request(a_, 17 * kGiB));
  EXPECT_EQ(refused.lease, nullptr);
  EXPECT_EQ(refused.bound_kind, MemoryBoundKind::kCgroup);
  EXPECT_EQ(refused.reason,
            "checkpoint needs 17.00 GiB of memory, 16.00 GiB available: memory.max of cgroup "
            "/sys/fs/cgroup/x 20.00 GiB - 2.00 GiB in use - 2.00 GiB headroom");
  EXPECT_TRUE(ledger.Fits(Request(a_, 16 * kGiB)));
}

TEST_F(MemoryLedgerTest, PagesThatOthersPayForCostACgroupNothing) {
  // A daemon newly started in a small cgroup finds a checkpoint that somebody else has read.
  WriteCgroup(4 * kGiB, kGiB, 0);
  MemoryLedger ledger(Options());
  EXPECT_FALSE(ledger.Fits(Request(a_, 50 * kGiB)));
  EXPECT_TRUE(ledger.Fits(Request(a_, 50 * kGiB, 50 * kGiB)));
  EXPECT_TRUE(ledger.Fits(Request(a_, 50 * kGiB, 48 * kGiB)));
  const MemoryAdmission refused = ledger.Admit(Request(a_, 50 * kGiB, 40 * kGiB));
  EXPECT_THAT(refused.reason,
              AllOf(HasSubstr("42.00 GiB available"),
                    HasSubstr("+ 40.00 GiB in memory already and charged elsewhere")));
  // Pages that may be charged here are not counted twice.
  WriteCgroup(4 * kGiB, 3 * kGiB, 2 * kGiB);
  EXPECT_FALSE(ledger.Fits(Request(a_, 50 * kGiB, 48 * kGiB)));
  EXPECT_TRUE(ledger.Fits(Request(a_, 48 * kGiB, 48 * kGiB)));
}

TEST_F(MemoryLedgerTest, TheSettingBoundsAllCheckpointsTogether) {
  MemoryLedger ledger(Options(10 * kGiB));
  const MemoryAdmission a = ledger.Admit(Request(a_, 6 * kGiB));
  ASSERT_NE(a.lease, nullptr);
  const MemoryAdmission b = ledger.Admit(Request(b_, 6 * kGiB));
  EXPECT_EQ(b.bound_kind, MemoryBoundKind::kSetting);
  EXPECT_EQ(
      b.reason,
      "checkpoint needs 6.00 GiB of memory, 4.00 GiB available: memory-limit 10.00 GiB - 6.00 "
      "GiB leased to other checkpoints");
}

TEST_F(MemoryLedgerTest, MemoryIsLookedAtAtEachQuestion) {
  MemoryLedger ledger(Options());
  EXPECT_TRUE(ledger.Fits(Request(a_, 50 * kGiB)));
  WriteAvailable(40 * kGiB);
  EXPECT_FALSE(ledger.Fits(Request(a_, 50 * kGiB)));
}

TEST_F(MemoryLedgerTest, WhereNothingIsKnownNothingIsRefused) {
  const TemporaryDirectoryForTest empty;
  MemoryLedger ledger({.root = empty.path(), .headroom = {}});
  const MemoryAdmission admission = ledger.Admit(Request(a_, kNoMemoryLimit));
  EXPECT_NE(admission.lease, nullptr);
  // Sums do not wrap around.
  EXPECT_NE(ledger.Admit(Request(b_, kNoMemoryLimit)).lease, nullptr);
  const MemoryStanding standing = ledger.Standing();
  EXPECT_FALSE(standing.available_bytes.has_value());
  EXPECT_THAT(standing.bound, IsEmpty());
  EXPECT_THAT(standing.unknown, Not(IsEmpty()));
}

TEST_F(MemoryLedgerTest, WhoWasToldThatItFitsKeepsItsPlace) {
  MemoryLedger ledger(Options());
  const MemoryAdmission a = ledger.Admit(Request(a_, 80 * kGiB));
  const auto renewed = ledger.Renew(Request(b_, 30 * kGiB));
  EXPECT_NE(renewed, nullptr);
  EXPECT_EQ(ledger.leased_bytes(), 110 * kGiB);
  EXPECT_EQ(ledger.Renew(Request(b_, 30 * kGiB)), renewed);
}

TEST_F(MemoryLedgerTest, StandingSaysWhatIsLeftAndWhatBoundsIt) {
  MemoryLedger ledger(Options());
  const MemoryAdmission a = ledger.Admit(Request(a_, 30 * kGiB));
  const MemoryStanding standing = ledger.Standing();
  EXPECT_EQ(standing.leased_bytes, 30 * kGiB);
  EXPECT_EQ(standing.available_bytes, 50 * kGiB);
  EXPECT_THAT(standing.bound, HasSubstr("- 30.00 GiB leased to other checkpoints"));
}

TEST_F(MemoryLedgerTest, TwoThatAskAtOnceNeverGetTheSameMemory) {
  MemoryLedger ledger(Options(10 * kGiB));
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  const char checkpoints[kThreads] = {};
  std::atomic<uint64_t> held = 0;
  std::atomic<bool> over = false;
  std::atomic<int> admitted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        MemoryAdmission admission = ledger.Admit(Request(checkpoints[i], 4 * kGiB));
        if (admission.lease == nullptr) continue;
        ++admitted;
        if (held.fetch_add(4 * kGiB) + 4 * kGiB > 10 * kGiB) over = true;
        held.fetch_sub(4 * kGiB);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_GT(admitted, 0);
  EXPECT_EQ(ledger.leased_bytes(), 0u);
}

TEST(FormatMemoryTest, HasTwoPlacesInTheLargestUnit) {
  EXPECT_EQ(FormatMemory(0), "0 B");
  EXPECT_EQ(FormatMemory(1023), "1023 B");
  EXPECT_EQ(FormatMemory(1536), "1.50 KiB");
  EXPECT_EQ(FormatMemory(140 * kGiB), "140.00 GiB");
  EXPECT_EQ(FormatMemory(kNoMemoryLimit), "16.00 EiB");
}

}  // namespace
}  // namespace forestage
