// What checkpoints have of the node's memory: who was promised how much, and whether another one
// fits beside them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "daemon/memory/memory_budget.h"

namespace forestage {

// A checkpoint that wants memory.
struct MemoryRequest {
  // Names it within the daemon. The same checkpoint is promised its memory once.
  const void* checkpoint = nullptr;
  uint64_t wanted_bytes = 0;
  // Of the wanted ones: in the page cache now, as far as the kernel tells. Fewer is always safe:
  // these bytes only count for less where they are charged to others.
  uint64_t resident_bytes = 0;
};

// Holds a promise as long as it lives. Outlived by its ledger.
class MemoryLease {
 public:
  virtual ~MemoryLease() = default;
};

struct MemoryAdmission {
  // Null when it does not fit.
  std::shared_ptr<const MemoryLease> lease;
  // When it does not fit: one line with the numbers, and what bounds.
  std::string reason;
  MemoryBoundKind bound_kind = MemoryBoundKind::kNode;
};

// For people and logs.
struct MemoryStanding {
  uint64_t leased_bytes = 0;
  // What a further checkpoint may have; nullopt when nothing bounds it.
  std::optional<uint64_t> available_bytes;
  // The tightest bound with its arithmetic; empty as above.
  std::string bound;
  std::vector<std::string> unknown;
};

// Thread-safe. Reads the budget anew at each question: some files of /proc and of cgroups.
class MemoryLedger {
 public:
  explicit MemoryLedger(MemoryBudget::Options options);
  ~MemoryLedger();
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // Compares and takes in one step, so that two who ask at once cannot both have the same memory. A
  // checkpoint that has a lease shares it.
  //
  // The kernel calls pages under lease reclaimable; here they are not. So everything leased and
  // everything wanted together must fit what would be free without either. Pages that are in
  // memory already and can only be charged to somebody else cost nothing.
  MemoryAdmission Admit(const MemoryRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Would Admit give a lease now?
  bool Fits(const MemoryRequest& request) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Without comparing, for who was told before that it fits.
  std::shared_ptr<const MemoryLease> Renew(const MemoryRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t leased_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  MemoryStanding Standing() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Lease;
  struct Entry {
    uint64_t wanted_bytes = 0;
    uint64_t resident_bytes = 0;  // when it was leased
    std::weak_ptr<const MemoryLease> lease;
  };
  // A bound as one request meets it.
  struct Tightest {
    MemoryBound bound;
    uint64_t others_bytes = 0;     // under lease
    uint64_t elsewhere_bytes = 0;  // in memory, and charged to others for sure
    uint64_t available_bytes = 0;  // for this request
    bool fits = false;
  };

  std::shared_ptr<const MemoryLease> SharedLease(const void* checkpoint) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const MemoryLease> Take(const MemoryRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Tightest> FindTightest(const MemoryReading& reading,
                                       const MemoryRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static std::string Arithmetic(const Tightest& tightest);
  void Return(const Lease& lease) ABSL_LOCKS_EXCLUDED(mutex_);

  const MemoryBudget budget_;
  mutable absl::Mutex mutex_;
  std::map<const void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t leased_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t leased_resident_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// "1.50 GiB": for people, two places, rounded down.
std::string FormatMemory(uint64_t bytes);

}  // namespace forestage
