#include "daemon/storage/read_rate_limits.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "common/units.h"

namespace forestage {
namespace {

ReadRateLimits Of(const std::string& text) {
  const std::optional<ReadRateLimits> limits = ReadRateLimits::Parse(text);
  EXPECT_TRUE(limits.has_value()) << text;
  return limits.value_or(ReadRateLimits());
}

TEST(ReadRateLimitsTest, NothingIsLimitedByDefault) {
  EXPECT_EQ(ReadRateLimits().Of("nfs4"), ReadRateLimits::kNone);
  EXPECT_EQ(ReadRateLimits().Smallest(), ReadRateLimits::kNone);
  EXPECT_EQ(ReadRateLimits().ToString(), "none");
}

TEST(ReadRateLimitsTest, OneSizeIsForEachMount) {
  EXPECT_EQ(Of("2GiB").Of("nfs4"), 2 * kGiB);
  EXPECT_EQ(Of("2GiB").Of("ext4"), 2 * kGiB);
}

TEST(ReadRateLimitsTest, ATypeHasItsOwn) {
  const ReadRateLimits limits = Of("nfs=500MiB,lustre=1GiB");
  EXPECT_EQ(limits.Of("lustre"), 1 * kGiB);
  EXPECT_EQ(limits.Of("nfs"), 500 * kMiB);
  EXPECT_EQ(limits.Of("ext4"), ReadRateLimits::kNone);
  EXPECT_EQ(limits.Smallest(), 500 * kMiB);
}

TEST(ReadRateLimitsTest, ATypeMayBeExempt) {
  const ReadRateLimits limits = Of("1GiB,ext4=none");
  EXPECT_EQ(limits.Of("ext4"), ReadRateLimits::kNone);
  EXPECT_EQ(limits.Of("xfs"), 1 * kGiB);
  EXPECT_EQ(limits.Smallest(), 1 * kGiB);
}

TEST(ReadRateLimitsTest, ATypeStandsForItsKindsUnlessTheyHaveTheirOwn) {
  const ReadRateLimits limits = Of("fuse=10MiB,fuse.sshfs=20MiB,nfs=30MiB");
  EXPECT_EQ(limits.Of("fuse.other"), 10 * kMiB);
  EXPECT_EQ(limits.Of("fuse.sshfs"), 20 * kMiB);
  EXPECT_EQ(limits.Of("nfs4"), 30 * kMiB);
  // Not what only begins with the same letters.
  EXPECT_EQ(limits.Of("fuseblk"), ReadRateLimits::kNone);
  EXPECT_EQ(Of("nfs4=1MiB").Of("nfs"), ReadRateLimits::kNone);
}

TEST(ReadRateLimitsTest, IsWrittenAsItIsRead) {
  for (const std::string text : {"none", "2GiB", "nfs=500MiB", "ext4=none,nfs=1GiB,2GiB"}) {
    EXPECT_EQ(Of(text).ToString(), text);
  }
}

TEST(ReadRateLimitsTest, RefusesWhatIsNoLimit) {
  for (const std::string text :
       {"", "0", "-1", "fast", "2GiB,", ",2GiB", "1GiB,2GiB", "nfs=", "=1GiB", "nfs=0",
        "nfs=1GiB,nfs=2GiB", "nfs=1=2", "n fs=1GiB", "nfs= 1GiB", "/mnt=1GiB", "2G"}) {
    EXPECT_FALSE(ReadRateLimits::Parse(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace forestage
