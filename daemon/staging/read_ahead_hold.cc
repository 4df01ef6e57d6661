#include "daemon/staging/read_ahead_hold.h"

namespace forestage {

void ReadAheadHold::Begin(SessionId session, absl::Time now) {
  if (!sessions_.insert(session).second || now < next_from_) return;
  begun_at_ = now;
  ends_at_ = now + longest_;
  next_from_ = ends_at_ + kReadAheadHoldRest * longest_;
}

bool ReadAheadHold::End(SessionId session, absl::Time now) {
  const bool held = holds(now);
  sessions_.erase(session);
  if (!held || !sessions_.empty()) return false;
  ends_at_ = now;
  next_from_ = now + kReadAheadHoldRest * (now - begun_at_);
  return true;
}

}  // namespace forestage
