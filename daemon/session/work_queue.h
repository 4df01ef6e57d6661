// Where work that blocks on storage is given away to.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace forestage {

// Who made a piece of work necessary, and on what it may block.
struct WorkOwner {
  // Of work that nobody in particular made necessary, or that blocks on nobody knows what.
  static constexpr uint64_t kUnknown = UINT64_MAX;

  uint64_t user = kUnknown;
  // A file system: its device number.
  uint64_t storage = kUnknown;

  auto operator<=>(const WorkOwner&) const = default;
};

// How many threads at most.
struct WorkLimits {
  size_t threads_max = 0;
  size_t threads_per_user_max = 0;
  // Of one user, for one storage: others of his shall go on when it never answers.
  size_t threads_per_storage_max = 0;
};

// Thread-safe. The destructor runs all that was submitted, then ends.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;

  // Runs `work` later, never before it returns. The caller bounds how much it submits.
  virtual void Submit(WorkOwner owner, std::function<void()> work) = 0;
  // Waits until nothing is queued or running; false when the deadline has passed before.
  virtual bool WaitUntilIdle(absl::Time deadline) = 0;
};

using WorkQueueFactory = std::function<std::unique_ptr<WorkQueue>(const WorkLimits& limits)>;

}  // namespace forestage
