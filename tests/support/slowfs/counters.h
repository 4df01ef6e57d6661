// What was asked of slowfs.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace forestage {

// Thread-safe.
class Counters {
 public:
  void CountOpen() ABSL_LOCKS_EXCLUDED(mutex_);
  // One read request was answered with `bytes` bytes.
  void CountRead(absl::string_view path, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountFault() ABSL_LOCKS_EXCLUDED(mutex_);
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_);

  // {"opens", "requests", "bytes", "faults", "held", "files": {path: {"requests", "bytes"}}} on one
  // line; `held` is given by the caller.
  std::string ToJson(uint64_t held) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct File {
    uint64_t requests = 0;
    uint64_t bytes = 0;
  };
  mutable absl::Mutex mutex_;
  uint64_t opens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, File> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
