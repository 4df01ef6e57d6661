#include "client/src/timed_call.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

#include "common/thread_start.h"

namespace forestage {
namespace {

struct TimedCall {
  void Run() {
    absl::Status status = call();
    call = nullptr;
    absl::MutexLock lock(&mutex);
    result = std::move(status);
    if (left_behind) --LeftBehind();
  }

  static std::atomic<int>& LeftBehind() {
    static std::atomic<int> count = 0;
    return count;
  }

  // Of the thread that runs it.
  std::function<absl::Status()> call;
  absl::Mutex mutex;
  std::optional<absl::Status> result ABSL_GUARDED_BY(mutex);
  bool left_behind ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace

absl::Status CallUntil(absl::Time deadline, std::function<absl::Status()> call) {
  const absl::Status late = absl::DeadlineExceededError("it has not come back by the deadline");
  if (TimedCall::LeftBehind() >= kCallsLeftBehindMax) {
    absl::SleepFor(deadline - absl::Now());
    return late;
  }
  const auto timed = std::make_shared<TimedCall>();
  timed->call = std::move(call);
  absl::StatusOr<std::thread> thread = StartThread([timed] { timed->Run(); });
  if (thread.ok()) {
    thread->detach();
  } else {
    timed->Run();
  }
  absl::MutexLock lock(&timed->mutex);
  const auto done = [](TimedCall* one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(one->mutex) {
    return one->result.has_value();
  };
  if (timed->mutex.AwaitWithDeadline(absl::Condition(+done, timed.get()), deadline))
    return *timed->result;
  timed->left_behind = true;
  ++TimedCall::LeftBehind();
  return late;
}

}  // namespace forestage
