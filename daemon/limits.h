// Bounds of the daemon that are not settings. One block a part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

#include "common/units.h"

namespace forestage {

// Staging.

// Largest piece of one read-ahead advice, whatever the mount would take: pieces are also the unit
// in which a read is cancelled.
inline constexpr uint64_t kAdviceBytesCap = 8 * kMiB;
// Where the mount does not say: the kernel's own default read-ahead.
inline constexpr uint64_t kAdviceBytesDefault = 128 * kKiB;
// Requests that one reader takes at a time.
inline constexpr size_t kReaderRequestsMax = 64;
// Pieces that one io_uring reader has at the kernel, and kernel worker threads that serve them: a
// piece that waits for its device may hold one.
inline constexpr size_t kUringPiecesMax = 64;
// Threads of one thread-pool reader.
inline constexpr size_t kReaderThreads = 8;
// Buffer for bytes that are read only so that they are in the page cache. An io_uring reader has
// one, a thread-pool reader one a thread.
inline constexpr size_t kScratchBytes = 256 * kKiB;
// Rounds of "look for holes, read them" before the pages are populated through the mapping.
inline constexpr int kFillRoundsMax = 3;
// Shards opened and headers read at a time for one checkpoint.
inline constexpr size_t kHeaderReadersMax = 8;
// Errors of reads kept for one checkpoint.
inline constexpr size_t kReadErrorsKept = 32;
// How long the end of a checkpoint waits for lanes whose device does not answer before it leaves
// them behind.
inline constexpr absl::Duration kLaneStopTimeout = absl::Seconds(2);

}  // namespace forestage
