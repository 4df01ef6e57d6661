// One open weight file of a staged checkpoint, and what is known of its pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/file_mapping.h"
#include "common/mount_probe.h"
#include "common/unique_fd.h"
#include "daemon/storage/mount.h"

namespace forestage {

class MountTable;

// Do two descriptors share one page cache, and has the file changed between? Equality means that
// what is known of one holds for the other.
struct CacheIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;

  friend bool operator==(const CacheIdentity&, const CacheIdentity&) = default;
};

// Bytes [begin, end) of a file.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// The identity of an open file. Errors of fstat; INVALID_ARGUMENT for what is not a regular file.
absl::StatusOr<CacheIdentity> CacheIdentityOf(int fd);

// What of a file can change, and its ctime with it, without a change to a byte of it.
struct FileAttributes {
  uint64_t links = 0;
  uint32_t mode = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  // Where it lies, as far as this machine knows.
  std::string path;

  friend bool operator==(const FileAttributes&, const FileAttributes&) = default;
};

// Thread-safe.
class ShardFile {
 public:
  // Whether a descriptor that a client sent may be served, and what it is, without opening
  // anything. INVALID_ARGUMENT: not a regular file, not open for reading, or of a file system type
  // that is not served (proc, sysfs, ...). `name` stands in errors. May block on the file system.
  static absl::StatusOr<CacheIdentity> Check(const std::string& name, int fd);
  // Takes a descriptor that a client sent and reopens it through /proc/self/fd for flags and
  // read-ahead state of its own; uses the received one where that is refused, and on FUSE, where a
  // second open may drop every cached page of the file. Probes its mount, passively, and tells
  // `mounts`, which may be null. Blocks on the file system. INVALID_ARGUMENT: as Check.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(std::string name, UniqueFd received,
                                                         MountTable* mounts = nullptr);

  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return identity_.bytes; }
  const CacheIdentity& identity() const { return identity_; }
  // FAILED_PRECONDITION when size or mtime have changed since Open, or ctime has without a change
  // of the file's name, links, owner or rights that explains it: the bytes served would not be the
  // bytes that were checked. Deleted, renamed or given to others it is unchanged. Asks no server:
  // on a network file system it tells what this machine knows already. See
  // docs/decisions/0014-a-ctime-that-moved-for-a-known-reason-is-no-change.md.
  absl::Status CheckUnchanged() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Size of the file now, as far as this machine knows; never blocks on a server.
  absl::StatusOr<uint64_t> CurrentBytes() const;

  // Bytes of the pages of [offset, offset + bytes) that are in the page cache and up to date now;
  // nullopt where the kernel would not tell the truth (mincore says "all" to who neither owns nor
  // may write the file). Requires: within the file, offset a multiple of the page size.
  std::optional<uint64_t> ResidentBytes(uint64_t offset, uint64_t bytes) const;
  // Whether [offset, offset + bytes) seems to be in the page cache, in a hundredth of a
  // millisecond: see common/cached_bytes.h for what may be overlooked. Never on a mount where a
  // read has failed, since what that left in the cache is overlooked. Requires: within the file.
  bool LooksCached(uint64_t offset, uint64_t bytes) const;
  // Of the whole file, asked cheaply: about right, and 0 where nobody knows.
  uint64_t CachedBytes() const;
  // What is missing of it: the pages that are not, in order, merged where they touch, and cut to
  // the range. nullopt as above; same requirements.
  std::optional<std::vector<ByteRange>> MissingRanges(uint64_t offset, uint64_t bytes) const;
  // The whole file, for readers that verify by populating. Empty where the file system refuses
  // mappings.
  const FileMapping& mapping() const { return mapping_; }
  // Takes the blocks of kFaultBlockBytes that [begin, end) lies in out of our page tables, where
  // they would keep their pages from being evicted. The pages stay cached. Requires: within the
  // file.
  void UnmapBlocks(uint64_t begin, uint64_t end) const;
  // Largest piece that one read-ahead advice brings in on this mount, in bytes; a multiple of the
  // page size. See common/advice_bytes.h for how it is found.
  uint64_t advice_bytes_max() const { return probe_.mount.advice_bytes_max; }
  // What was found of the mount, and of this file there, when it was opened.
  const MountProbe& probe() const { return probe_; }
  // What was learned of it by reading.
  Mount& mount() const { return *mount_; }

 private:
  ShardFile(std::string name, UniqueFd fd, CacheIdentity identity, FileAttributes attributes,
            FileMapping mapping, MountProbe probe, std::shared_ptr<Mount> mount,
            std::shared_ptr<const void> mount_use);

  // Whether each change of ctime that was seen came with one of the file's attributes.
  bool CtimeIsExplained() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Maps the first page of each huge block of [begin, end), where all of it is cached, and returns
  // the blocks. Where a block is one huge page all of it is mapped then, by one entry, and mincore
  // looks at that instead of at each page: 2 ms a GiB instead of 14. Reads nothing.
  ByteRange MapCachedBlocks(uint64_t begin, uint64_t end) const;

  // Constant after construction.
  const std::string name_;
  const UniqueFd fd_;
  const CacheIdentity identity_;
  const FileMapping mapping_;
  const MountProbe probe_;
  const std::shared_ptr<Mount> mount_;
  // See MountTable::Use.
  const std::shared_ptr<const void> mount_use_;

  mutable absl::Mutex mutex_;
  // As they were when the file was opened, then at the last look that found ctime moved.
  mutable int64_t explained_ctime_ns_ ABSL_GUARDED_BY(mutex_);
  mutable FileAttributes attributes_ ABSL_GUARDED_BY(mutex_);
  // What comes later explains nothing.
  mutable bool ctime_unexplained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace forestage
