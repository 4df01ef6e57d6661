// The mounts that this daemon has read from, and what their probes found.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/mount_probe.h"
#include "daemon/limits.h"
#include "daemon/storage/mount.h"

namespace forestage {

// Thread-safe.
class MountTable {
 public:
  struct Options {
    // How long what was read of a mount holds.
    absl::Duration facts_kept = kMountFactsKept;
    MountProbeOptions probe;
  };
  struct Seen {
    // Of the file that was opened last there, or of the last one whose residency cannot be asked.
    MountProbe probe;
    uint64_t files_opened = 0;
    // Of them, those whose residency cannot be asked.
    uint64_t files_residency_unknown = 0;
  };

  MountTable() : MountTable(Options()) {}
  explicit MountTable(Options options) : options_(std::move(options)) {}

  // Held for each open file of a mount. An open file keeps its device number from being given to
  // another mount; once none is open, it is the mount's id that tells.
  using Use = std::shared_ptr<const void>;

  // Facts of the mount of an open file: those that are known, else newly read. They are forgotten
  // after a while, so that a changed read_ahead_kb counts for what is opened next. Whatever is
  // known of a mount whose device number is another one's now is forgotten, too. Where the kernel
  // has no ids that tell, a probe holds as long as a file is open. Blocks no longer than fstatfs.
  absl::StatusOr<MountFacts> FactsOf(int fd) ABSL_LOCKS_EXCLUDED(mutex_);

  // A file was opened and probed. Logs one line when the mount is new, or not what it was.
  // To be held as long as the file is open.
  Use OnFileOpened(const MountProbe& probe) ABSL_LOCKS_EXCLUDED(mutex_);

  // In the order in which they were first seen, without those that are unmounted as far as this
  // process can see; at most kMountsKept, the others are forgotten.
  std::vector<Seen> List() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    Seen seen;
    absl::Time facts_read_at = absl::InfinitePast();
    // Where the mount itself is in this process's mount namespace, not a copy of it in another one.
    std::optional<uint64_t> own_mount_id;
    bool logged = false;
    // All that is known comes from an empty file.
    bool seen_empty_file = false;
    // What is learned by reading is kept after the last file is closed.
    std::shared_ptr<Mount> mount;
    // Whether a file of it is open.
    std::weak_ptr<const void> use;
  };
  static bool IsGone(const Entry& entry);
  // Null, and nothing known, where it is of another mount than the one with this id.
  Entry* FindSame(uint64_t device, uint32_t magic, std::optional<uint64_t> mount_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry* Find(uint64_t device, uint32_t magic) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  const Options options_;

  mutable absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
