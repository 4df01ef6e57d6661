// Where work that blocks on storage is given away to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"

namespace forestage {

// Thread-safe. The destructor runs all that was submitted, then ends.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;

  // Runs `work` later, never before it returns. `owner` is whoever made it necessary, such as a
  // user id. The caller bounds how much it submits.
  virtual void Submit(uint64_t owner, std::function<void()> work) = 0;
  // Waits until nothing is queued or running; false when the deadline has passed before.
  virtual bool WaitUntilIdle(absl::Time deadline) = 0;
};

// How many threads at most, in all and for one owner.
using WorkQueueFactory =
    std::function<std::unique_ptr<WorkQueue>(size_t threads_max, size_t threads_per_owner_max)>;

}  // namespace forestage
