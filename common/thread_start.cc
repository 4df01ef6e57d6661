#include "common/thread_start.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace forestage {

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started (", error.code().message(),
                     "): raise the limit of threads (TasksMax= of a systemd unit, pids of a "
                     "container, ulimit -u of a user)"));
  }
}

}  // namespace forestage
