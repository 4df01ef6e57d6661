#include "daemon/session/session_decision.h"

namespace forestage {

absl::string_view SessionPolicyName(SessionPolicy policy) {
  switch (policy) {
    case SessionPolicy::kAuto:
      return "auto";
    case SessionPolicy::kNative:
      return "native";
    case SessionPolicy::kRankStripedReadAhead:
      return "rank_striped_read_ahead";
  }
  return "unknown";
}

absl::string_view SessionAgreementName(SessionAgreement agreement) {
  return agreement == SessionAgreement::kStrict ? "strict" : "eager";
}

absl::string_view ReasonClassName(ReasonClass reason_class) {
  switch (reason_class) {
    case ReasonClass::kRequested:
      return "requested";
    case ReasonClass::kChosenByDaemon:
      return "chosen_by_daemon";
    case ReasonClass::kDecidedByGroup:
      return "decided_by_group";
    case ReasonClass::kNativeInGroup:
      return "native_in_group";
    case ReasonClass::kSignatureMismatch:
      return "signature_mismatch";
    case ReasonClass::kGroupIncomplete:
      return "group_incomplete";
    case ReasonClass::kNotEnoughMemory:
      return "not_enough_memory";
  }
  return "unknown";
}

}  // namespace forestage
