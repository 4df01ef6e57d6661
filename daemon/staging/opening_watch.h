// Checkpoints whose storage does not answer while they are opened.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <sys/types.h>

namespace forestage {

// Thread-safe; nothing blocks.
class OpeningWatch {
 private:
  struct Opening {
    std::string path_label;
    uid_t uid = 0;
    absl::Time begun;
    bool told = false;
  };

 public:
  // As long as it exists, the checkpoint is being opened. The watch outlives it.
  class Entry {
   public:
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class OpeningWatch;
    Entry(OpeningWatch& watch, std::list<Opening>::iterator place) : watch_(watch), place_(place) {}
    OpeningWatch& watch_;
    const std::list<Opening>::iterator place_;
  };

  struct Stuck {
    std::string path_label;
    uid_t uid = 0;
    absl::Duration time;
  };

  std::unique_ptr<Entry> Begin(std::string path_label, uid_t uid, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have taken kStuckReadTime at least. Each once, and one of several of a user for the
  // same path: its ranks wait for the same answer.
  std::vector<Stuck> NewlyStuck(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::list<Opening> openings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
