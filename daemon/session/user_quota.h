// What one user has of the daemon, so that no user can have all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <sys/types.h>

namespace forestage {

// Thread-safe; nothing blocks.
class UserQuota {
 public:
  struct Options {
    size_t sessions_max = 0;
    size_t descriptors_max = 0;
    // Of all checkpoints that are read for the user at one time.
    uint64_t staged_bytes_max = UINT64_MAX;
  };

 private:
  // Outlives the quota as long as there are charges.
  struct Account {
    size_t sessions = 0;
    size_t descriptors = 0;
    uint64_t staged_bytes = 0;
    size_t staged_checkpoints = 0;
    bool empty() const { return sessions == 0 && descriptors == 0 && staged_checkpoints == 0; }
  };
  // What is read of one checkpoint for one user, however many of his sessions want it.
  struct Staged {
    uint64_t bytes = 0;
    size_t holders = 0;
  };
  using StagedKey = std::pair<uid_t, const void*>;
  struct Ledger {
    absl::Mutex mutex;
    std::map<uid_t, Account> accounts ABSL_GUARDED_BY(mutex);
    std::map<StagedKey, Staged> staged ABSL_GUARDED_BY(mutex);
  };

 public:
  // Something that counts for a user until it is destroyed. Whoever still works for a session after
  // its end (storage that does not answer) keeps its charge: a user whose storage hangs has used up
  // his share, not everybody's. Thread-safe.
  class Charge {
   public:
    ~Charge();
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;

    // RESOURCE_EXHAUSTED, and nothing is added: the user would have too many.
    absl::Status AddDescriptors(size_t count);
    // Takes the descriptors out of this charge into one of their own, which counts no session.
    std::shared_ptr<Charge> SplitDescriptors();
    void DropDescriptors();
    uid_t uid() const { return uid_; }

   private:
    friend class UserQuota;
    Charge(std::shared_ptr<Ledger> ledger, const Options& options, uid_t uid, size_t sessions);
    // Both are of one ledger, whose lock is held.
    void MoveFrom(Charge& other) ABSL_NO_THREAD_SAFETY_ANALYSIS;

    const std::shared_ptr<Ledger> ledger_;
    const Options options_;
    const uid_t uid_;
    const size_t sessions_;
    size_t descriptors_ ABSL_GUARDED_BY(ledger_->mutex) = 0;
  };

  // One session's part in what is read of a checkpoint for its user. The bytes count once, until
  // the last holder for this user and checkpoint is destroyed; the checkpoint outlives them all.
  class StagedHold {
   public:
    ~StagedHold();
    StagedHold(const StagedHold&) = delete;
    StagedHold& operator=(const StagedHold&) = delete;

   private:
    friend class UserQuota;
    StagedHold(std::shared_ptr<Ledger> ledger, StagedKey key);
    const std::shared_ptr<Ledger> ledger_;
    const StagedKey key_;
  };

  explicit UserQuota(const Options& options);
  // A session more. RESOURCE_EXHAUSTED names the setting.
  absl::StatusOr<std::shared_ptr<Charge>> ChargeSession(uid_t uid);

  // `bytes` of a checkpoint are to be read for this user; what he has of it already costs nothing.
  // RESOURCE_EXHAUSTED, with the numbers and the setting: he would have too many.
  absl::StatusOr<std::unique_ptr<StagedHold>> HoldStaged(uid_t uid, const void* checkpoint,
                                                         uint64_t bytes);
  // The same without comparing, for who was told before that it fits.
  std::unique_ptr<StagedHold> KeepStaged(uid_t uid, const void* checkpoint, uint64_t bytes);
  // Bytes by user, of those who have any.
  std::map<uid_t, uint64_t> StagedBytes() const;
  uint64_t staged_bytes_max() const { return options_.staged_bytes_max; }

 private:
  std::unique_ptr<StagedHold> TakeStaged(const StagedKey& key, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ledger_->mutex);

  const Options options_;
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace forestage
