// Tells of a process that waits for a file which does not come.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/blocked_call.h"
#include <sys/types.h>

namespace forestage {

// So long one call on a file may take before it is told of.
inline constexpr absl::Duration kStallPatience = absl::Seconds(10);

// Looks now and then at a process from which nothing comes. Not thread-safe.
class StallWatch {
 public:
  explicit StallWatch(pid_t process) : process_(process) {}

  // It has got on: the time begins anew.
  void Restart(absl::Time now);
  // To be called often. One call on a file that it has waited for since Restart for
  // kStallPatience; told once, until the next Restart.
  std::optional<BlockedCall> Look(absl::Time now);
  // The process has told of it itself: nothing is until the next Restart.
  void Told() { told_ = true; }

 private:
  const pid_t process_;
  absl::Time since_ = absl::InfiniteFuture();
  std::optional<BlockedCall> seen_;
  absl::Time next_look_ = absl::InfiniteFuture();
  bool told_ = false;
};

// "open of /models/a.safetensors has not come back for 10 s; ...".
std::string StallText(const BlockedCall& blocked);
// The same of what is not one call of this process.
std::string StallText(absl::string_view awaited);

}  // namespace forestage
