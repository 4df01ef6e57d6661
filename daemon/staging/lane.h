// One lane: a thread with a StorageReader of its own that reads what the stager hands it.
#pragma once

#include <cstddef>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "daemon/staging/stager.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// Used from its owner's thread.
class Lane {
 public:
  // Starts the thread. `index` is below the stager's lane_count, and no other lane's.
  // RESOURCE_EXHAUSTED: there is no thread to be had.
  static absl::StatusOr<std::unique_ptr<Lane>> Start(std::shared_ptr<Stager> stager, size_t index,
                                                     std::unique_ptr<StorageReader> reader);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  // Requires: JoinOrLeave() was called.
  ~Lane();

  // Waits until the thread has ended, which it does soon after Stager::Stop() unless its device
  // does not answer. At the deadline it is left behind: it keeps the stager and ends by itself when
  // the device does answer. False then.
  bool JoinOrLeave(absl::Time deadline);

 private:
  struct Body;
  Lane(std::shared_ptr<Body> body, std::thread thread);
  static void Run(const std::shared_ptr<Body>& body);

  const std::shared_ptr<Body> body_;
  std::thread thread_;
};

}  // namespace forestage
