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
  // A read request for `bytes` bytes came.
  void CountRequest(absl::string_view path, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // That request is to be answered, with `given_bytes` of its `bytes` bytes.
  void CountAnswer(absl::string_view path, uint64_t bytes, uint64_t given_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CountFault(absl::string_view path) ABSL_LOCKS_EXCLUDED(mutex_);
  // What is in flight stays so, and is the new peak.
  void Reset() ABSL_LOCKS_EXCLUDED(mutex_);

  // One line; README.md has its fields. `held` is given by the caller.
  std::string ToJson(uint64_t held) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What was asked for and is not answered yet, now and at most.
  struct InFlight {
    uint64_t requests = 0;
    uint64_t bytes = 0;
    uint64_t requests_peak = 0;
    uint64_t bytes_peak = 0;

    void Add(uint64_t request_bytes);
    void Remove(uint64_t request_bytes);
    void Reset();
  };
  struct File {
    // Answered.
    uint64_t requests = 0;
    uint64_t bytes = 0;
    uint64_t request_bytes_max = 0;
    uint64_t faults = 0;
    InFlight in_flight;
  };
  mutable absl::Mutex mutex_;
  uint64_t opens_ ABSL_GUARDED_BY(mutex_) = 0;
  InFlight in_flight_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, File> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
