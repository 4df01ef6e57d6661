// What one user has of the daemon, so that no user can have all of it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

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
  };

 private:
  // Outlives the quota as long as there are charges.
  struct Account {
    size_t sessions = 0;
    size_t descriptors = 0;
  };
  struct Ledger {
    absl::Mutex mutex;
    std::map<uid_t, Account> accounts ABSL_GUARDED_BY(mutex);
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

  explicit UserQuota(const Options& options);
  // A session more. RESOURCE_EXHAUSTED names the setting.
  absl::StatusOr<std::shared_ptr<Charge>> ChargeSession(uid_t uid);

 private:
  const Options options_;
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace forestage
