// A call that may never come back, for somebody who has a deadline.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace forestage {

// So many calls may be waited for in vain at a time, in the whole process.
inline constexpr int kCallsLeftBehindMax = 64;

// Makes `call` in a thread of its own and waits for it until `deadline`. DEADLINE_EXCEEDED: it has
// not come back; its thread stays behind, and with it what `call` holds, until it does. `call` is
// destroyed before this returns otherwise. While too many are left behind, it is not made at all
// and the deadline is waited for; without a thread to be had it is made here. Thread-safe.
absl::Status CallUntil(absl::Time deadline, std::function<absl::Status()> call);

}  // namespace forestage
