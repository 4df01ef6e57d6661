// What slows a mount or hides it from the daemon, what that costs, and what to change.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

#include "common/mount_probe.h"

namespace forestage {

struct Weakness {
  // Stable, for scripts and logs: "small_read_ahead".
  std::string id;
  std::string what;
  std::string cost;
  // A command or setting, ready to be used.
  std::string change;
};

// By the mount, worst first. docs/storage.md lists them all.
std::vector<Weakness> WeaknessesOf(const MountProbe& probe);

// Of a process for which io_uring was refused with this status (see CheckIoUring); none when OK.
std::vector<Weakness> WeaknessesOfIoUring(const absl::Status& io_uring);

// Of files on one mount of which `unknown_files` are not this process's: see MountProbe::rights.
// `overlay` as in MountFacts. Requires: unknown_files > 0.
Weakness ResidencyUnknownWeakness(uint64_t unknown_files, bool overlay, const std::string& reason);

}  // namespace forestage
