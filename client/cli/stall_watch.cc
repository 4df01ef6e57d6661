#include "client/cli/stall_watch.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

// How often a process is looked at from which nothing comes.
constexpr absl::Duration kLookInterval = absl::Seconds(2);

}  // namespace

void StallWatch::Restart(absl::Time now) {
  seen_.reset();
  next_look_ = now + kLookInterval;
  told_ = false;
}

std::optional<BlockedCall> StallWatch::Look(absl::Time now) {
  if (told_ || now < next_look_) return std::nullopt;
  next_look_ = now + kLookInterval;
  std::optional<BlockedCall> blocked = FindBlockedCall(process_);
  if (!blocked.has_value() || !seen_.has_value() || seen_->identity != blocked->identity) {
    seen_ = std::move(blocked);
    since_ = now;
    return std::nullopt;
  }
  if (now - since_ < kStallPatience) return std::nullopt;
  told_ = true;
  return seen_;
}

std::string StallText(const BlockedCall& blocked) { return StallText(BlockedText(blocked)); }

std::string StallText(absl::string_view awaited) {
  return absl::StrCat(awaited, " has not come back for ", absl::FormatDuration(kStallPatience),
                      "; look at the mount, its server and the kernel's "
                      "log, or end this command (Ctrl-C)");
}

}  // namespace forestage
