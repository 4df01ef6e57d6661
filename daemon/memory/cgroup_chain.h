// Which memory cgroups a process is in, and where their files are, from /proc/PID/cgroup and
// /proc/PID/mountinfo. Pure; any bytes may come.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace forestage {

enum class CgroupVersion { kV1, kV2 };

// A cgroup that the process is in, with its path as the kernel shows it to this process: below the
// root of its cgroup namespace, with ".." where it is outside of that.
struct CgroupMembership {
  CgroupVersion version = CgroupVersion::kV2;
  std::string path;

  friend bool operator==(const CgroupMembership&, const CgroupMembership&) = default;
};

// A mounted hierarchy that can hold memory limits: version 2, or version 1 with its controller
// `memory`.
struct CgroupMount {
  CgroupVersion version = CgroupVersion::kV2;
  // The cgroup that is seen at the mount point; shown as in CgroupMembership.
  std::string root;
  std::string mount_point;

  friend bool operator==(const CgroupMount&, const CgroupMount&) = default;
};

// Of /proc/PID/cgroup: the lines that matter to memory. Other lines and broken ones are left out.
std::vector<CgroupMembership> ParseCgroupMemberships(absl::string_view cgroup);
// Of /proc/PID/mountinfo, in its order.
std::vector<CgroupMount> ParseCgroupMounts(absl::string_view mountinfo);

// The directories of one cgroup and of all its ancestors that a mount shows.
struct CgroupChain {
  CgroupVersion version = CgroupVersion::kV2;
  // The process's own cgroup first, the mount point last.
  std::vector<std::string> directories;
};

// The ways to see a cgroup, the one that shows most ancestors first; of equal ones the latest mount
// first, since it lies on top. Empty when no mount shows it. A mount point can lie under another
// mount, so the caller takes the first whose own directory is there.
std::vector<CgroupChain> FindCgroupChains(const CgroupMembership& membership,
                                          const std::vector<CgroupMount>& mounts);

}  // namespace forestage
