// The staging board: shared memory in which the daemon shows, extent by extent, what is resident.
//
// A board belongs to one staged checkpoint. The daemon writes it; every rank maps the same memfd
// read-only (F_SEAL_FUTURE_WRITE) and waits on it without a call to the daemon. This header is the
// layout; docs/staging_board.md is the page about it.
//
//   offset 0    BoardHeader, kBoardHeaderBytes long
//   then        one ExtentState byte for each extent
//
// States of an extent, and who moves it (always the daemon):
//
//   kAbsent --demanded--> kQueued --a lane takes it--> kReading --verified--> kResident
//                            ^                            |
//                            |                            +--read failed----> kFailed
//                            +-----------demanded again-------------------------+
//   kQueued --nobody demands it any more--> kAbsent
//   kReading --reading was called off--> kAbsent
//   kReading or kResident --more of it is demanded--> kQueued
//   kQueued --nobody demands any more what was missing of it--> kResident
//   kResident --more of it is demanded of a daemon that stops--> kAbsent
//
// kResident is only ever shown after every page that is demanded of the extent was seen up to date:
// all of them, unless sessions want less. It does not promise that no page is evicted later: a rank
// populates what it is about to use and takes an error from that.
//
// Waiting: read change_count, look at the state, FUTEX_WAIT_BITSET (shared, not private) on
// change_count with the value read and the bit BoardWaitBit(index). The daemon bumps change_count
// after each change and wakes those who wait with the extent's bit, except for changes that end no
// wait (to kQueued and kReading); board_protocol.h has both sides' steps. A daemon that is gone is
// seen by heartbeat_ns standing still, without the socket's help.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/file_mapping.h"
#include "common/unique_fd.h"

namespace forestage {

enum class ExtentState : uint8_t {
  kAbsent = 0,
  kQueued = 1,
  kReading = 2,
  kResident = 3,
  kFailed = 4,
};
inline constexpr uint8_t kExtentStateMax = 4;

// The bit of a futex bitset that stands for an extent: waiters of different extents rarely wake for
// each other.
constexpr uint32_t BoardWaitBit(uint64_t index) { return uint32_t{1} << (index % 32); }

enum class BoardPhase : uint32_t {
  kServing = 0,
  // The daemon stops: it reads nothing more but what is in flight; go on natively.
  kClosed = 1,
};

inline constexpr uint64_t kBoardMagic = 0x64616f6273726f66;  // "forsboad", little-endian
inline constexpr uint32_t kBoardLayoutVersion = 1;
inline constexpr uint32_t kBoardHeaderBytes = 128;
// Most extents that a board holds: 64 TiB in extents of 8 MiB.
inline constexpr uint64_t kBoardExtentCountMax = 8 * 1024 * 1024;
// An extent's size is a power of two within these.
inline constexpr uint64_t kBoardExtentBytesMin = 4 * 1024;
inline constexpr uint64_t kBoardExtentBytesMax = 1024 * 1024 * 1024;
// How often the daemon refreshes heartbeat_ns, and after how long without it a rank goes on alone.
inline constexpr absl::Duration kBoardHeartbeatPeriod = absl::Milliseconds(250);
inline constexpr absl::Duration kBoardHeartbeatTimeout = absl::Seconds(5);

struct BoardHeader {
  // Constant once the board is handed out.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;  // where the state bytes begin
  uint64_t extent_count;
  uint64_t extent_bytes;
  uint64_t generation;  // differs between any two runs of the daemon

  // Change while the board is in use.
  std::atomic<int64_t> heartbeat_ns;  // CLOCK_MONOTONIC
  std::atomic<uint32_t> change_count;
  std::atomic<uint32_t> phase;  // a BoardPhase
  // Bumped while what is queued waits for the daemon's limit of bytes a second and for nothing
  // else. 0 for ever from a daemon of before there was one.
  std::atomic<uint32_t> held_back_count;
};
static_assert(sizeof(BoardHeader) <= kBoardHeaderBytes);
static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The daemon's side. Thread-safe.
class StagingBoard {
 public:
  struct Options {
    uint64_t extent_count = 0;
    uint64_t extent_bytes = 0;
    uint64_t generation = 0;
  };
  // All extents kAbsent, phase kServing, heartbeat now. RESOURCE_EXHAUSTED above
  // kBoardExtentCountMax. Requires: extent_bytes is a power of two within kBoardExtentBytesMin and
  // kBoardExtentBytesMax.
  static absl::StatusOr<std::unique_ptr<StagingBoard>> Create(const Options& options);

  // The memfd to hand to ranks, which can only be mapped for reading. Owned by the board.
  int fd() const { return fd_.get(); }
  uint64_t extent_count() const { return extent_count_; }

  // Requires: index < extent_count(). SetState wakes who waits for the extent, unless the new state
  // is kQueued or kReading, which end no wait.
  ExtentState state(uint64_t index) const;
  void SetState(uint64_t index, ExtentState state);
  // Moves the state only if it is `expected`; says whether it did.
  bool CompareAndSetState(uint64_t index, ExtentState expected, ExtentState desired);
  // Moves those of extents [first, last) that are `expected`, and wakes who waits for them, once.
  // Requires: first <= last <= extent_count().
  void CompareAndSetStates(uint64_t first, uint64_t last, ExtentState expected,
                           ExtentState desired);

  void Beat();
  // What is queued waits for the daemon's own limit. Wakes nobody.
  void NoteHeldBack();
  // Sets kClosed and wakes every waiter; the board stays readable.
  void Close();

 private:
  StagingBoard(UniqueFd fd, FileMapping mapping, const Options& options);
  std::atomic<uint8_t>* StateBytes() const;

  // Constant after construction.
  const UniqueFd fd_;
  const FileMapping mapping_;
  const uint64_t extent_count_;
  BoardHeader* const header_;
};

// A rank's side: a board that came over the descriptor socket. Whatever its bytes say, no call here
// crashes or waits beyond its deadline. Thread-safe.
class StagingBoardView {
 public:
  // Maps and checks it. INVALID_ARGUMENT names what is wrong (not sealed, wrong magic, unknown
  // layout version, sizes that do not fit the file).
  static absl::StatusOr<std::unique_ptr<StagingBoardView>> Map(const UniqueFd& fd);

  uint64_t extent_count() const { return extent_count_; }
  uint64_t extent_bytes() const { return extent_bytes_; }
  uint64_t generation() const { return generation_; }

  // An index beyond the end and a state byte that means nothing are both kFailed: read it yourself.
  ExtentState state(uint64_t index) const;
  // The daemon closed the board, or its heartbeat stood still for kBoardHeartbeatTimeout.
  bool daemon_gone() const;
  // The first of these two: it stops in good order.
  bool closed() const;
  // Not what it was: meanwhile extents that are queued waited for the daemon's limit of bytes a
  // second only.
  uint32_t held_back_count() const;

  // Waits until the extent is kResident or kFailed, the daemon is gone, `*cancelled` (may be null)
  // is true, or the deadline has passed, and returns the state last seen. Wakes up by itself at
  // least every 100 ms to look at `*cancelled` and the heartbeat.
  ExtentState WaitFor(uint64_t index, absl::Time deadline,
                      const std::atomic<bool>* cancelled = nullptr) const;

 private:
  StagingBoardView(FileMapping mapping, uint64_t extent_count, uint64_t extent_bytes,
                   uint64_t generation);

  // Constant after construction.
  const FileMapping mapping_;
  const uint64_t extent_count_;
  const uint64_t extent_bytes_;
  const uint64_t generation_;
  const BoardHeader* const header_;
  const std::atomic<uint8_t>* const states_;
};

}  // namespace forestage
