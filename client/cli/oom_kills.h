// Whether the kernel has ended processes for want of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// The line `oom_kill` of /proc/vmstat; nullopt without one (Linux before 4.13).
std::optional<uint64_t> ParseOomKills(absl::string_view vmstat);

// Counts them from its making on: those of the node and of every memory cgroup. Immutable.
class OomKills {
 public:
  OomKills();

  // What is to be said of a process that SIGKILL has ended meanwhile: ", probably ...", or nothing
  // when no process of this node was ended for want of memory.
  std::string Suspicion() const;

 private:
  const std::optional<uint64_t> before_;
};

}  // namespace forestage
