// Wakes the lanes of one checkpoint.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "daemon/storage/storage_reader.h"

namespace forestage {

// Thread-safe. Calls nothing but StorageReader::Wake, so it may be called under any lock.
class LaneWaker {
 public:
  void Attach(StorageReader* reader) ABSL_LOCKS_EXCLUDED(mutex_);
  // The reader is not woken any more once this returns.
  void Detach(StorageReader* reader) ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::vector<StorageReader*> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
