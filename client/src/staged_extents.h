// Waiting for what the daemon stages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/daemon_loss.h"
#include "client/src/daemon_session.h"

#include "checkpoint/extent.h"
#include "common/staging_board.h"

namespace forestage {

// How long an extent may stand still, with the daemon alive, until the rank reads it itself.
inline constexpr absl::Duration kExtentPatience = absl::Seconds(30);
// After each extent that stood still the patience for the next one halves, down to this.
inline constexpr absl::Duration kExtentPatienceMin = absl::Seconds(1);
// An extent that is queued again and again is given up after so many changes.
inline constexpr int kExtentChangesMax = 4;
// How many extents are asked for at once, from the one that is waited for on: as many as keep a
// device busy. More would put all that a rank wants before what others wait for.
inline constexpr uint64_t kUrgentExtentsAhead = 4;

// Who brings bytes into memory.
enum class Reader {
  // The daemon has.
  kDaemon,
  // Whoever wants them: the daemon cannot, or is gone, or took too long.
  kSelf,
};

// Thread-safe.
class StagedExtents {
 public:
  struct Options {
    std::unique_ptr<StagingBoardView> board;
    // Of this rank's own files.
    absl::Span<const uint64_t> shard_bytes;
    // Outlives this object.
    DaemonSession* daemon = nullptr;
    std::shared_ptr<DaemonLoss> loss;
    absl::Duration patience = kExtentPatience;
  };
  // INVALID_ARGUMENT: the board does not fit these files.
  static absl::StatusOr<std::unique_ptr<StagedExtents>> Create(Options options);

  // Waits until bytes [begin, end) of a shard are staged, or until it is clear that the daemon will
  // not do that. Asks for them urgently, once, if nobody reads them yet; what follows up to
  // `ahead_end` is asked for with them. A rank that found the daemon just before itself waits a
  // moment first. DEADLINE_EXCEEDED; FAILED_PRECONDITION when the session is closed meanwhile.
  // Requires: begin <= end <= ahead_end <= the shard's bytes.
  absl::StatusOr<Reader> Wait(uint32_t shard_index, uint64_t begin, uint64_t end,
                              uint64_t ahead_end, absl::Time deadline);

  // The extents of these bytes, [first, second). Requires: begin <= end <= the shard's bytes.
  std::pair<uint64_t, uint64_t> Covering(uint32_t shard_index, uint64_t begin, uint64_t end) const {
    return map_.Covering(shard_index, begin, end);
  }
  // Whether the board shows all, or any, of the extents of these bytes so now. Requires: as above.
  bool AllAre(ExtentState state, uint32_t shard_index, uint64_t begin, uint64_t end) const;
  bool AnyIs(ExtentState state, uint32_t shard_index, uint64_t begin, uint64_t end) const;
  // Whether any of extents [first, last) is resident or being read.
  bool AnyBegun(uint64_t first, uint64_t last) const;
  // Waits until every extent of these ranges is resident or failed and nobody's extent is queued or
  // being read: all that is demanded has come, as far as the board shows. Woken by the board, not
  // by a clock. False at the deadline, or when the session is closed or the daemon lost before.
  bool WaitUntilSettled(absl::Span<const std::pair<uint64_t, uint64_t>> ranges,
                        absl::Time deadline) const;

  // Tells `loss` if the board says that the daemon is gone.
  void LookAtDaemon() const;

 private:
  explicit StagedExtents(Options options, const ExtentMap& map);
  absl::StatusOr<Reader> WaitForExtent(uint64_t index, uint64_t ahead_last, absl::Time deadline);
  // `again`: also if extent `index` was asked for before.
  void AskFor(uint64_t index, uint64_t ahead_last, bool again);
  absl::Duration Patience() const;

  // Constant after construction.
  const std::unique_ptr<StagingBoardView> board_;
  const ExtentMap map_;
  DaemonSession* const daemon_;
  const std::shared_ptr<DaemonLoss> loss_;
  const absl::Duration patience_;
  // One an extent: kAsked, kGivenUp.
  const std::unique_ptr<std::atomic<uint8_t>[]> marks_;

  // When this rank last had to wait, the daemon was already reading what it waited for.
  std::atomic<bool> in_order_ = false;
  // Extents given up since one last came.
  std::atomic<int> stalls_ = 0;
};

}  // namespace forestage
