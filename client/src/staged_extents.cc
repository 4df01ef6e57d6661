#include "client/src/staged_extents.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/status_macros.h"
#include "common/units.h"

namespace forestage {
namespace {

constexpr uint8_t kAsked = 1;
constexpr uint8_t kGivenUp = 2;

// How often a waiter makes sure that the daemon still means to stage its extent.
constexpr absl::Duration kLookAgainPeriod = absl::Seconds(1);

// How long a rank that goes along with the daemon's order waits for a queued extent before it asks:
// in that order it is among the next, and asking costs both sides more than it brings.
constexpr absl::Duration kAskDelay = absl::Milliseconds(5);

bool IsSettled(ExtentState state) {
  return state == ExtentState::kResident || state == ExtentState::kFailed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedExtents>> StagedExtents::Create(Options options) {
  const uint64_t extent_bytes = options.board->extent_bytes();
  if ((extent_bytes & (extent_bytes - 1)) != 0 || extent_bytes < PageBytes()) {
    return absl::InvalidArgumentError(absl::StrCat("extents of ", extent_bytes, " bytes"));
  }
  const ExtentMap map(options.shard_bytes, extent_bytes);
  if (map.extent_count() != options.board->extent_count()) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", options.board->extent_count(),
                                                   " extents, these files have ",
                                                   map.extent_count()));
  }
  return std::unique_ptr<StagedExtents>(new StagedExtents(std::move(options), map));
}

StagedExtents::StagedExtents(Options options, const ExtentMap& map)
    : board_(std::move(options.board)),
      map_(map),
      daemon_(options.daemon),
      loss_(std::move(options.loss)),
      patience_(options.patience),
      marks_(std::make_unique<std::atomic<uint8_t>[]>(map.extent_count())) {}

absl::StatusOr<Reader> StagedExtents::Wait(uint32_t shard_index, uint64_t begin, uint64_t end,
                                           uint64_t ahead_end, absl::Time deadline) {
  const auto [first, last] = map_.Covering(shard_index, begin, end);
  const uint64_t ahead_last = map_.Covering(shard_index, begin, ahead_end).second;
  Reader reader = Reader::kDaemon;
  for (uint64_t index = first; index < last; ++index) {
    ASSIGN_OR_RETURN(const Reader one, WaitForExtent(index, ahead_last, deadline));
    if (one == Reader::kSelf) reader = Reader::kSelf;
  }
  return reader;
}

absl::StatusOr<Reader> StagedExtents::WaitForExtent(uint64_t index, uint64_t ahead_last,
                                                    absl::Time deadline) {
  ExtentState state = board_->state(index);
  if (state == ExtentState::kResident) return Reader::kDaemon;
  if (state == ExtentState::kFailed || loss_->lost() ||
      (marks_[index].load(std::memory_order_relaxed) & kGivenUp) != 0) {
    return Reader::kSelf;
  }
  ExtentState before = state;
  absl::Time now = absl::Now();
  absl::Time give_up = now + Patience();
  absl::Time ask = in_order_.load(std::memory_order_relaxed) ? now + kAskDelay : now;
  bool asked = false;
  uint32_t held_back = board_->held_back_count();
  for (int changes = 0;;) {
    if (state == ExtentState::kReading) {
      in_order_.store(true, std::memory_order_relaxed);
    } else if (state == ExtentState::kAbsent || now >= ask) {
      AskFor(index, ahead_last, /*again=*/asked && state == ExtentState::kAbsent);
      in_order_.store(false, std::memory_order_relaxed);
      asked = true;
      ask = absl::InfiniteFuture();
    }
    const absl::Time look_again = now + kLookAgainPeriod;
    // What is being read is not asked for when the moment comes.
    const absl::Time next_ask = state == ExtentState::kReading ? absl::InfiniteFuture() : ask;
    state = board_->WaitFor(index, std::min({deadline, give_up, look_again, next_ask}),
                            &loss_->interrupted());
    if (state == ExtentState::kResident) {
      stalls_.store(0, std::memory_order_relaxed);
      return Reader::kDaemon;
    }
    if (state == ExtentState::kFailed) return Reader::kSelf;
    if (loss_->closed()) return absl::FailedPreconditionError("the session was closed");
    LookAtDaemon();
    if (loss_->lost()) return Reader::kSelf;
    now = absl::Now();
    if (now >= deadline) {
      const Extent extent = map_.extent(index);
      return absl::DeadlineExceededError(absl::StrCat("waiting for the daemon to stage shard ",
                                                      extent.shard_index, " at offset ",
                                                      extent.offset));
    }
    // The daemon may read no faster: who read by himself then would go past its limit.
    if (now >= give_up && state == ExtentState::kQueued) {
      const uint32_t before_this = std::exchange(held_back, board_->held_back_count());
      if (held_back != before_this) give_up = now + Patience();
    }
    if (now >= give_up) {
      if (state == before || ++changes > kExtentChangesMax) {
        marks_[index].fetch_or(kGivenUp, std::memory_order_relaxed);
        stalls_.fetch_add(1, std::memory_order_relaxed);
        return Reader::kSelf;
      }
      before = state;
      give_up = now + Patience();
    }
  }
}

absl::Duration StagedExtents::Patience() const {
  const int stalls = std::min(stalls_.load(std::memory_order_relaxed), 16);
  return std::min(patience_, std::max(kExtentPatienceMin, patience_ / (1 << stalls)));
}

void StagedExtents::AskFor(uint64_t index, uint64_t ahead_last, bool again) {
  std::vector<uint64_t> urgent;
  // Somebody else's session, for which it was being read, has gone.
  if (again) marks_[index].fetch_and(static_cast<uint8_t>(~kAsked), std::memory_order_relaxed);
  for (uint64_t i = index; i < std::min(ahead_last, index + kUrgentExtentsAhead); ++i) {
    const ExtentState state = board_->state(i);
    if (state != ExtentState::kAbsent && state != ExtentState::kQueued) continue;
    if ((marks_[i].fetch_or(kAsked, std::memory_order_relaxed) & kAsked) == 0) urgent.push_back(i);
  }
  if (!urgent.empty()) daemon_->SendUrgent(urgent);
}

bool StagedExtents::AllAre(ExtentState state, uint32_t shard_index, uint64_t begin,
                           uint64_t end) const {
  auto [index, last] = map_.Covering(shard_index, begin, end);
  while (index < last && board_->state(index) == state) ++index;
  return index == last;
}

bool StagedExtents::AnyIs(ExtentState state, uint32_t shard_index, uint64_t begin,
                          uint64_t end) const {
  auto [index, last] = map_.Covering(shard_index, begin, end);
  while (index < last && board_->state(index) != state) ++index;
  return index < last;
}

bool StagedExtents::AnyBegun(uint64_t first, uint64_t last) const {
  for (uint64_t index = first; index < last; ++index) {
    const ExtentState state = board_->state(index);
    if (state == ExtentState::kReading || state == ExtentState::kResident) return true;
  }
  return false;
}

bool StagedExtents::WaitUntilSettled(absl::Span<const std::pair<uint64_t, uint64_t>> ranges,
                                     absl::Time deadline) const {
  const auto wait_for = [&](uint64_t index) {
    return IsSettled(board_->WaitFor(index, deadline, &loss_->interrupted()));
  };
  for (const auto& [first, last] : ranges) {
    for (uint64_t index = first; index < last; ++index) {
      if (!IsSettled(board_->state(index)) && !wait_for(index)) return false;
    }
  }
  for (uint64_t index = 0; index < board_->extent_count(); ++index) {
    const ExtentState state = board_->state(index);
    // Absent extents are demanded by nobody.
    if (state != ExtentState::kQueued && state != ExtentState::kReading) continue;
    if (!wait_for(index)) return false;
  }
  return !loss_->interrupted().load(std::memory_order_acquire);
}

void StagedExtents::LookAtDaemon() const {
  if (!board_->daemon_gone()) return;
  loss_->Lose(board_->closed() ? "the daemon closed its staging board: it stops"
                               : absl::StrCat("the daemon's heartbeat stood still for ",
                                              absl::FormatDuration(kBoardHeartbeatTimeout)));
}

}  // namespace forestage
