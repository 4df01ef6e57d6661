// When each read request is answered: after its latency, within the bandwidth, not while it is
// held. Requests wait in a queue and take no thread, so that any number may be in flight or held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "tests/support/slowfs/file_range.h"

namespace forestage {

// Thread-safe.
class ReadScheduler {
 public:
  struct Read {
    std::string path;
    uint64_t offset = 0;
    uint64_t size = 0;
    int reader = 0;
    // Called exactly once, on a worker: with 0 to serve the read, or with the errno to answer.
    std::function<void(int error_number)> answer;
  };

  ReadScheduler();
  // Requires: Stop() was called.
  ~ReadScheduler();

  // Takes a read that does not move yet; Start() lets it go. In between Interrupt() may come.
  uint64_t Add(Read read) ABSL_LOCKS_EXCLUDED(mutex_);
  void Start(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers the read with EINTR if it still waits and interrupts count.
  void Interrupt(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Each holds for reads that come afterwards.
  void SetLatency(absl::Duration latency) ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes a second over all files; 0: no limit.
  void SetBandwidth(uint64_t bytes_per_second) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetInterruptible(bool interruptible) ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads of the range are not answered until it is released.
  void Hold(FileRange range) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets the holds of `name` (all when empty) and lets their reads go. Returns how many.
  size_t Release(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t held_count() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Answers all that waits with EIO, and all that comes later. Waits for the workers.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    Read read;
    bool started = false;
    bool held = false;
    int error_number = 0;
    absl::Time due = absl::InfiniteFuture();
  };

  bool IsHeld(const Read& read) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetDue(uint64_t id, Waiting& waiting, absl::Time due) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  absl::Duration latency_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_per_second_ ABSL_GUARDED_BY(mutex_) = 0;
  bool interruptible_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // When the modelled device has sent all that was asked so far.
  absl::Time device_free_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::vector<FileRange> holds_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, uint64_t>> due_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_;
};

}  // namespace forestage
