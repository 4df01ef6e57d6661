// Threads where there may be no more of them.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace forestage {

// A thread that runs `body`. RESOURCE_EXHAUSTED when the system gives this process no more: the
// limit of its control group or its user is reached, and std::thread alone would end the process.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

}  // namespace forestage
