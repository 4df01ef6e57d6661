// What FaultyStorageReaders do wrong; for tests and fault drills.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "daemon/storage/storage_reader.h"

namespace forestage {

struct ReadFault {
  enum class Kind {
    kErrno,      // the read fails with error_number
    kEndOfFile,  // the file ends where the fault begins
    kShort,      // the device gives the first half at first, the rest in a second read
    kHold,       // the device answers after Release(), or Cancel()
    kDeaf,       // the device answers after Release() only
  };
  // Requests of this file that touch [begin, end) ...
  std::string file_name;
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
  Kind kind = Kind::kErrno;
  int error_number = 0;
  // ... this many times.
  uint64_t times = UINT64_MAX;
};

// Thread-safe; outlives the readers that use it.
class ReadFaults {
 public:
  void Add(ReadFault fault) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes all faults back and lets go of what is held.
  void Release() ABSL_LOCKS_EXCLUDED(mutex_);

  // How many requests were begun; how many are held now.
  uint64_t requests_begun() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t requests_held() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until that many have been begun, or are held.
  void WaitUntilBegun(uint64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitUntilHeld(uint64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until no reader uses these faults.
  void WaitUntilUnused() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class FaultyStorageReader;

  void Attach(StorageReader* reader) ABSL_LOCKS_EXCLUDED(mutex_);
  void Detach(StorageReader* reader) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts the request; the fault that it meets, if any (kind is then not changed by later Adds).
  bool OnRequest(const ReadRequest& request, ReadFault* fault) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnHoldEnded(uint64_t count) ABSL_LOCKS_EXCLUDED(mutex_);
  // Changes with every Release(): what was held before is free.
  uint64_t release_count() const ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<ReadFault> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<StorageReader*> readers_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t held_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t releases_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace forestage
