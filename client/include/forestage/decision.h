// What a rank asked for, what it got, and why.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

enum class Policy {
  // The daemon decides.
  kAuto,
  // This process reads the files itself.
  kNative,
  // The daemon reads every demanded byte once per node, striped over the local ranks.
  kRankStripedReadAhead,
};
// "auto", "native", "rank_striped_read_ahead".
absl::string_view PolicyName(Policy policy);

// When the group's decision is given out.
enum class Agreement {
  // At each rank's own open; nobody waits.
  kEager,
  // When all local ranks are there, the same to all; at the deadline all get native.
  kStrict,
};
// "eager", "strict".
absl::string_view AgreementName(Agreement agreement);

struct Decision {
  Policy requested = Policy::kAuto;
  // Never kAuto. Becomes kNative for good when the daemon is lost in the middle of a load.
  Policy effective = Policy::kNative;
  // The daemon's reading was in use at some time of this load.
  bool activated = false;
  // One line. Not empty when `effective` is kNative.
  std::string reason = {};
};

}  // namespace forestage
