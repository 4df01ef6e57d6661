// Brings what a rank reads by itself into memory, ahead of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/checkpoint_files.h"
#include "client/src/read_ahead.h"

#include "common/mount_probe.h"
#include "common/units.h"

namespace forestage {

// Where a page fault brings in a whole block (a huge page) whatever read-ahead the mount has,
// blocks are brought in by faults, several at a time, in threads that begin with the first block
// and end with this object. Whether a mount does that, the first block tells of which nothing is in
// memory. Elsewhere, and for blocks of which not all is wanted, the kernel is asked to read ahead.
//
// All of it is only ahead of who reads: whoever reads afterwards meets the error. Thread-safe.
class BlockFiller {
 public:
  static constexpr uint64_t kBlockBytes = kFaultBlockBytes;
  // Of a block that is brought in whole, so much may be wanted by nobody.
  static constexpr uint64_t kUnwantedBytesMax = 16 * kKiB;
  // How long the destructor waits for threads whose storage does not answer; then they are left to
  // end by themselves. They keep the files.
  static constexpr absl::Duration kStopPatience = absl::Seconds(2);

  struct Options {
    std::shared_ptr<const CheckpointFiles> files;
    // What this rank wants, in any order, where each shard's data begin, and whether other ranks
    // want the rest of its blocks. nullopt: it wants everything.
    std::optional<std::vector<ReadAhead::Part>> wanted;
    std::vector<uint64_t> data_begins;
    bool others_want_the_rest = false;
    // At least 1.
    size_t threads_max = 1;
  };
  explicit BlockFiller(Options options);
  ~BlockFiller();
  BlockFiller(const BlockFiller&) = delete;
  BlockFiller& operator=(const BlockFiller&) = delete;

  // These bytes are read soon. Does nothing when all of them are in memory. Blocks on storage for
  // the block that tells of its mount, once.
  void Ask(const ReadAhead::Part& part) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until [begin, end) is in memory, bringing in what is not, if this shard's blocks are
  // brought in by faults: a read would begin a read-ahead of its own in the middle of a block.
  void BringIn(uint32_t shard_index, uint64_t begin, uint64_t end) const;
  // Forgets what is not begun.
  void Stop();

  // Whether this shard's blocks are brought in by faults, as far as it is known.
  bool UsesFaults(uint32_t shard_index) const;

 private:
  enum class Way : uint8_t { kUnknown, kFaults, kAdvice };
  struct Work;
  class WantedBlocks;

  Way WayOf(uint32_t shard_index, uint64_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Way Try(uint32_t shard_index, uint64_t block) const;
  bool IsWantedWhole(uint32_t shard_index, uint64_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: there is no thread that could do it.
  bool Queue(uint32_t shard_index, uint64_t block);

  const Options options_;
  const std::shared_ptr<Work> work_;
  // One a shard.
  const std::unique_ptr<std::atomic<Way>[]> ways_;

  absl::Mutex mutex_;
  // Of mounts, by device number.
  std::vector<std::pair<uint64_t, Way>> mounts_ ABSL_GUARDED_BY(mutex_);
  // Made when first needed.
  std::unique_ptr<WantedBlocks> wanted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
