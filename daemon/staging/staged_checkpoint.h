// A checkpoint that the daemon stages: its files, catalog, board, demands and lanes.
//
// Shared by every session on the same files (equal cache identity), whatever their group. It lives
// while somebody holds it: sessions today.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "checkpoint/catalog.h"
#include "checkpoint/extent.h"
#include "common/unique_fd.h"
#include "daemon/staging/mount_flight.h"
#include "daemon/storage/mount_table.h"
#include "daemon/storage/shard_file.h"

namespace forestage {

// Why an extent was read.
enum class ReadCause {
  kStage,   // its turn in the union of demands
  kDemand,  // a rank waited for it
};

// Told what lanes do; implemented by telemetry. Called from lane threads; must not block.
class StagingObserver {
 public:
  virtual ~StagingObserver() = default;
  // One extent is resident: `storage_bytes` came from storage.
  virtual void OnExtentRead(ReadCause cause, uint64_t storage_bytes, absl::Duration latency) = 0;
  virtual void OnReadError(const absl::Status& status) = 0;
};

// Names one session's demand within the daemon.
using SessionId = uint64_t;

// A read that has not come back for kStuckReadTime.
struct UnansweredRead {
  std::string file;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  absl::Duration age;
};

struct StagingProgress {
  uint64_t wanted_bytes = 0;    // of all demanded pages
  uint64_t resident_bytes = 0;  // of these, verified
  uint64_t failed_bytes = 0;    // of these, not readable by the daemon
  uint64_t read_bytes = 0;      // from storage, ever, for this checkpoint
  double staging_seconds = 0;   // first demand until complete, or until now
  bool complete = false;        // nothing wanted is left to read; false before the first demand
  // Made resident a second, over the last seconds (RecentRate::kWindow).
  double bytes_per_second = 0;
  // At this rate. nullopt: unknown, since nothing is wanted or nothing comes.
  std::optional<absl::Duration> time_left = std::nullopt;
  // In their order in the files; at most kStuckReadsShown.
  std::vector<UnansweredRead> stuck_reads = {};
};

// One part of a demand.
struct DemandItem {
  uint32_t tensor_index = 0;
  // Byte range inside the tensor, end exclusive; both 0: the whole tensor.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Thread-safe. Nothing here blocks on storage.
class StagedCheckpoint {
 public:
  virtual ~StagedCheckpoint() = default;

  virtual const std::string& path_label() const = 0;
  virtual const CatalogView& catalog() const = 0;
  virtual const ExtentMap& extents() const = 0;
  // Descriptors to hand to ranks; owned by this object.
  virtual int catalog_fd() const = 0;
  virtual int board_fd() const = 0;

  // Adds to what a session demands, in order; lanes begin to read. Demands of several sessions are
  // read in turn, each in its own order, no page twice, and no page that nobody demands. A failed
  // extent that is demanded again is tried again. When this returns the board shows no extent as
  // resident of which a page that was demanded was not brought in.
  // INVALID_ARGUMENT: a tensor index or range outside the catalog; nothing was added.
  virtual absl::Status AddDemand(SessionId session, absl::Span<const DemandItem> items) = 0;
  // Everything, in file order.
  virtual void AddDemandForEverything(SessionId session) = 0;
  // These extents go before everything else: what is demanded of them, or all of one of which the
  // session demands nothing. Indexes outside the map are ignored.
  virtual void AddUrgent(SessionId session, absl::Span<const uint64_t> extent_indexes) = 0;
  // The session is gone; what nobody else demands and no lane has begun is not read any more.
  virtual void RemoveSession(SessionId session) = 0;
  // A session opens that wants of this checkpoint, or may. Until it has what it came for, for a
  // short time at most, only what is urgent is read where that takes processors from those who
  // open. Such a session need not demand anything.
  virtual void HoldReadAhead(SessionId /*session*/) {}
  virtual void ReleaseReadAhead(SessionId /*session*/) {}

  virtual StagingProgress progress() const = 0;
  // Bytes of the files that the page cache takes memory for: all but those of file systems that
  // live in memory themselves.
  virtual uint64_t CacheableBytes() const = 0;
  // Of these: in the page cache now, whoever brought them in; 0 where the kernel does not say. Asks
  // page by page: takes its time.
  virtual uint64_t CachedBytes() const = 0;
  // Errors of reads, oldest first, at most limits' kReadErrorsKept with at least one of each file
  // where that fits, and a count of the others; behind them, as many files at most that were
  // changed since they were opened, as far as this machine knows.
  virtual std::vector<std::string> read_errors() const = 0;
  // Lanes stop after what is in flight (cancelled where the kernel can), the board is closed. Does
  // not wait. The destructor waits for lanes.
  virtual void Stop() = 0;
};

// A descriptor that a client sent, with the name and size that its OpenRequest gave.
struct ReceivedShard {
  std::string name;
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
  UniqueFd fd;
  // Whose client that is; the first shard's counts for all.
  uid_t uid = 0;
};

// Finds or makes staged checkpoints. Thread-safe; outlives every checkpoint it gave out.
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;

  // Opens the files, reads and checks all headers (in parallel) unless an equal checkpoint is held
  // already, and starts `lane_count` lanes for a new one. Blocks on storage: not for a gRPC thread.
  // INVALID_ARGUMENT lists every damaged or changed shard.
  virtual absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(
      const std::string& path_label, std::vector<ReceivedShard> shards, size_t lane_count) = 0;

  // What is staged now.
  virtual std::vector<std::shared_ptr<StagedCheckpoint>> List() const = 0;
  // Stops every checkpoint; Acquire is UNAVAILABLE afterwards. Does not wait.
  virtual void Stop() = 0;
  // How the daemon reads: "io_uring" or "threads", and why.
  virtual std::string reader_name() const = 0;
  virtual std::string reader_reason() const = 0;
  // The mounts that it has read from.
  virtual std::vector<MountTable::Seen> mounts() const { return {}; }
  // What is read now of the mounts of staged checkpoints.
  virtual std::vector<MountFlight> Flights() const { return {}; }
};

}  // namespace forestage
