#include "daemon/memory/cgroup_chain.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CgroupVersion kV1 = CgroupVersion::kV1;
constexpr CgroupVersion kV2 = CgroupVersion::kV2;

// The directories of the first way to see the cgroup.
std::vector<std::string> Directories(const CgroupMembership& membership,
                                     const std::vector<CgroupMount>& mounts) {
  const std::vector<CgroupChain> chains = FindCgroupChains(membership, mounts);
  return chains.empty() ? std::vector<std::string>() : chains.front().directories;
}

TEST(ParseCgroupMembershipsTest, KeepsWhatHasToDoWithMemory) {
  EXPECT_THAT(ParseCgroupMemberships("0::/system.slice/forestaged.service\n"),
              ElementsAre(CgroupMembership{kV2, "/system.slice/forestaged.service"}));
  EXPECT_THAT(
      ParseCgroupMemberships("9:name=systemd:/\n"
                             "4:cpu,memory:/docker/abc\n"
                             "3:cpuset:/docker/abc\n"
                             "0::/init.scope\n"),
      ElementsAre(CgroupMembership{kV1, "/docker/abc"}, CgroupMembership{kV2, "/init.scope"}));
  // A cgroup's name may hold colons.
  EXPECT_THAT(ParseCgroupMemberships("0::/a:b:c\n"), ElementsAre(CgroupMembership{kV2, "/a:b:c"}));
}

TEST(ParseCgroupMembershipsTest, LeavesBrokenLinesOut) {
  EXPECT_THAT(ParseCgroupMemberships(""), IsEmpty());
  EXPECT_THAT(ParseCgroupMemberships("memory\n4:memory\n0::\n0::relative\n::\n1::/x\n"), IsEmpty());
  EXPECT_THAT(ParseCgroupMemberships("4:notmemory,memoryless:/x\n"), IsEmpty());
}

TEST(ParseCgroupMountsTest, FindsMemoryHierarchiesAmongAllMounts) {
  EXPECT_THAT(
      ParseCgroupMounts(
          "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
          "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
          "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
          "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro master:9 propagate_from:2 - cgroup cg "
          "rw,memory\n"
          "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"),
      ElementsAre(CgroupMount{kV1, "/docker/abc", "/sys/fs/cgroup/memory"},
                  CgroupMount{kV2, "/", "/sys/fs/cgroup/unified"}));
}

TEST(ParseCgroupMountsTest, UndoesEscapes) {
  EXPECT_THAT(ParseCgroupMounts("1 1 0:1 /a\\040b\\134 /mnt/x\\011y\\012z rw - cgroup2 none rw\n"),
              ElementsAre(CgroupMount{kV2, "/a b\\", "/mnt/x\ty\nz"}));
  // What is no escape stays as it is.
  EXPECT_THAT(ParseCgroupMounts("1 1 0:1 /a\\04 /m\\999\\777\\ rw - cgroup2 none rw\n"),
              ElementsAre(CgroupMount{kV2, "/a\\04", "/m\\999\\777\\"}));
}

TEST(ParseCgroupMountsTest, LeavesBrokenLinesOut) {
  EXPECT_THAT(ParseCgroupMounts("\n- - - - - -\n"
                                "1 1 0:1 / /x rw cgroup2 none rw\n"
                                "1 1 0:1 / /x rw -\n"
                                "1 1 0:1 / /x rw - cgroup2\n"
                                "1 1 0:1 / x rw - cgroup2 none rw\n"
                                "1 1 0:1 x /x rw - cgroup2 none rw\n"),
              IsEmpty());
}

TEST(FindCgroupChainsTest, ListsEveryAncestorFromTheOwnOneUp) {
  EXPECT_THAT(
      Directories({kV2, "/kubepods.slice/pod1/ctr"}, {{kV2, "/", "/sys/fs/cgroup"}}),
      ElementsAre("/sys/fs/cgroup/kubepods.slice/pod1/ctr", "/sys/fs/cgroup/kubepods.slice/pod1",
                  "/sys/fs/cgroup/kubepods.slice", "/sys/fs/cgroup"));
  EXPECT_THAT(Directories({kV2, "/"}, {{kV2, "/", "/sys/fs/cgroup"}}),
              ElementsAre("/sys/fs/cgroup"));
}

TEST(FindCgroupChainsTest, AContainerMountShowsOnlyItsOwnPart) {
  // Version 1 in a container without a cgroup namespace.
  EXPECT_THAT(
      Directories({kV1, "/docker/abc/inner"}, {{kV1, "/docker/abc", "/sys/fs/cgroup/memory"}}),
      ElementsAre("/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"));
  // "/docker/abcdef" is not below "/docker/abc".
  EXPECT_THAT(Directories({kV1, "/docker/abcdef"}, {{kV1, "/docker/abc", "/m"}}), IsEmpty());
}

TEST(FindCgroupChainsTest, PathsOutsideTheNamespaceAreFoundByTheirDots) {
  // The process was moved out of the namespace's root, and a mount from outside shows that.
  EXPECT_THAT(Directories({kV2, "/../.."}, {{kV2, "/../..", "/host"}}), ElementsAre("/host"));
  EXPECT_THAT(Directories({kV2, "/../../other"}, {{kV2, "/../..", "/host"}}),
              ElementsAre("/host/other", "/host"));
  // Nothing here shows it: a name that would lead there is hidden.
  EXPECT_THAT(Directories({kV2, "/../other"}, {{kV2, "/", "/sys/fs/cgroup"}}), IsEmpty());
  EXPECT_THAT(Directories({kV2, "/inner"}, {{kV2, "/..", "/host"}}), IsEmpty());
  EXPECT_THAT(Directories({kV2, "/../.."}, {{kV2, "/..", "/host"}}), IsEmpty());
}

TEST(FindCgroupChainsTest, PrefersTheMountThatShowsMostAncestorsThenTheLatest) {
  const std::vector<CgroupChain> chains =
      FindCgroupChains({kV2, "/a/b"}, {{kV2, "/a", "/part"},
                                       {kV2, "/", "/below"},
                                       {kV1, "/", "/other-version"},
                                       {kV2, "/", "/on-top"}});
  ASSERT_THAT(chains, SizeIs(3));
  EXPECT_EQ(chains[0].directories.back(), "/on-top");
  EXPECT_EQ(chains[1].directories.back(), "/below");
  EXPECT_EQ(chains[2].directories.back(), "/part");
}

TEST(FindCgroupChainsTest, AMountAtTheRootMakesNoDoubleSlash) {
  EXPECT_THAT(Directories({kV2, "/a"}, {{kV2, "/", "/"}}), ElementsAre("/a", "/"));
}

}  // namespace
}  // namespace forestage
