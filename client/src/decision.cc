#include "forestage/decision.h"

namespace forestage {

absl::string_view PolicyName(Policy policy) {
  switch (policy) {
    case Policy::kAuto:
      return "auto";
    case Policy::kNative:
      return "native";
    case Policy::kRankStripedReadAhead:
      return "rank_striped_read_ahead";
  }
  return "unknown";
}

absl::string_view AgreementName(Agreement agreement) {
  switch (agreement) {
    case Agreement::kEager:
      return "eager";
    case Agreement::kStrict:
      return "strict";
  }
  return "unknown";
}

}  // namespace forestage
