// The words of a group's decision, free of gRPC.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

enum class SessionPolicy {
  kAuto,
  kNative,
  kRankStripedReadAhead,
};
// "auto", "native", "rank_striped_read_ahead".
absl::string_view SessionPolicyName(SessionPolicy policy);

enum class SessionAgreement {
  kEager,
  kStrict,
};
// "eager", "strict".
absl::string_view SessionAgreementName(SessionAgreement agreement);

// Why a rank got what it got; the labels of the decision metric.
enum class ReasonClass {
  kRequested,          // "requested": this rank asked for it by name
  kChosenByDaemon,     // "chosen_by_daemon": it asked for auto
  kDecidedByGroup,     // "decided_by_group": another rank's wish decided
  kNativeInGroup,      // "native_in_group": a rank of the group asked for native first
  kSignatureMismatch,  // "signature_mismatch": ranks see different checkpoints
  kGroupIncomplete,    // "group_incomplete": strict, and ranks were missing or failed
  kNotEnoughMemory,    // "not_enough_memory": the node has no room for the checkpoint's pages
};
absl::string_view ReasonClassName(ReasonClass reason_class);

struct SessionDecision {
  SessionPolicy requested = SessionPolicy::kAuto;
  // Never kAuto.
  SessionPolicy effective = SessionPolicy::kNative;
  // Reading ahead was begun for this rank's checkpoint.
  bool activated = false;
  // One line for people. Never empty.
  std::string reason;
  ReasonClass reason_class = ReasonClass::kRequested;
};

}  // namespace forestage
