// How many bytes of headers the daemon holds, for all and for one user.
//
// A header is text of up to 100 MB that its writer chose, and what is made of it, the tensors while
// it is read and the catalog as long as its checkpoint is held, is memory that the kernel cannot
// take back. A checkpoint has as many headers as shards. So the bytes of the text are counted
// before they are read, until the checkpoint goes; the memory is a small multiple of them. Extents,
// of which a sparse file may have millions, count as some bytes each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include <sys/types.h>

namespace forestage {

// Thread-safe; nothing blocks.
class HeaderQuota {
 private:
  // Outlives the quota as long as there are holds.
  struct Ledger {
    absl::Mutex mutex;
    uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
    std::map<uid_t, uint64_t> bytes_of ABSL_GUARDED_BY(mutex);
  };

 public:
  struct Options {
    uint64_t bytes_max = 0;
    uint64_t user_bytes_max = 0;
  };

  // The headers and extents of one checkpoint, counted for the user who had them read. Thread-safe.
  class Hold {
   public:
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // RESOURCE_EXHAUSTED, and nothing is added: there would be too many.
    absl::Status Add(uint64_t bytes);

   private:
    friend class HeaderQuota;
    Hold(std::shared_ptr<Ledger> ledger, const Options& options, uid_t uid);
    const std::shared_ptr<Ledger> ledger_;
    const Options options_;
    const uid_t uid_;
    uint64_t bytes_ ABSL_GUARDED_BY(ledger_->mutex) = 0;
  };

  explicit HeaderQuota(const Options& options);
  std::shared_ptr<Hold> MakeHold(uid_t uid);

 private:
  const Options options_;
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace forestage
