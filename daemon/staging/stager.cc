#include "daemon/staging/stager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/check.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

std::vector<uint64_t> SizesOf(absl::Span<const std::unique_ptr<ShardFile>> files) {
  std::vector<uint64_t> sizes;
  for (const std::unique_ptr<ShardFile>& file : files) sizes.push_back(file->bytes());
  return sizes;
}

}  // namespace

Stager::Stager(Options options)
    : path_label_(std::move(options.path_label)),
      files_(std::move(options.files)),
      extents_(SizesOf(files_), options.extent_bytes),
      in_flight_bytes_max_(options.in_flight_bytes_max),
      lane_bytes_max_(options.in_flight_bytes_max / options.lane_count),
      board_(std::move(options.board)),
      queue_(extents_),
      lanes_(options.lane_count),
      observer_(options.observer) {
  CHECK(board_->extent_count() == extents_.extent_count());
}

void Stager::AddDemand(SessionId session, absl::Span<const ExtentRange> ranges) {
  absl::MutexLock lock(&mutex_);
  for (const ExtentRange& range : ranges) {
    queue_.Add(session, range);
    if (stopping()) continue;
    board_->CompareAndSetStates(range.first, range.last, ExtentState::kAbsent,
                                ExtentState::kQueued);
    board_->CompareAndSetStates(range.first, range.last, ExtentState::kFailed,
                                ExtentState::kQueued);
  }
  OnDemandChanged();
}

void Stager::AddUrgent(SessionId session, absl::Span<const uint64_t> extents) {
  absl::MutexLock lock(&mutex_);
  for (const uint64_t extent : extents) {
    queue_.AddUrgent(session, extent);
    if (stopping()) continue;
    board_->CompareAndSetState(extent, ExtentState::kAbsent, ExtentState::kQueued);
    board_->CompareAndSetState(extent, ExtentState::kFailed, ExtentState::kQueued);
  }
  OnDemandChanged();
}

void Stager::RemoveSession(SessionId session) {
  absl::MutexLock lock(&mutex_);
  for (const ExtentRange& range : queue_.RemoveSession(session)) {
    board_->CompareAndSetStates(range.first, range.last, ExtentState::kQueued,
                                ExtentState::kAbsent);
  }
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
}

void Stager::OnDemandChanged() {
  const absl::Time now = absl::Now();
  // The time in which nothing was wanted is not part of a rate.
  if (first_demand_ > now || completed_ <= now) rate_.Begin(now);
  first_demand_ = std::min(first_demand_, now);
  completed_ = IsComplete() ? std::min(completed_, now) : absl::InfiniteFuture();
  WakeLanes();
}

bool Stager::IsComplete() const {
  return first_demand_ != absl::InfiniteFuture() &&
         queue_.wanted_bytes() == queue_.resident_bytes() + queue_.failed_bytes();
}

void Stager::WakeLanes() {
  for (LaneState& lane : lanes_) {
    lane.waits_for_budget = false;
    if (lane.reader != nullptr) lane.reader->Wake();
  }
}

StagingProgress Stager::progress() const {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  StagingProgress progress = {.wanted_bytes = queue_.wanted_bytes(),
                              .resident_bytes = queue_.resident_bytes(),
                              .failed_bytes = queue_.failed_bytes(),
                              .read_bytes = read_bytes_,
                              .staging_seconds = 0,
                              .complete = IsComplete(),
                              .bytes_per_second = rate_.BytesPerSecond(now)};
  if (first_demand_ != absl::InfiniteFuture()) {
    progress.staging_seconds = absl::ToDoubleSeconds(std::min(completed_, now) - first_demand_);
  }
  if (progress.wanted_bytes > 0 || progress.complete) {
    progress.time_left = rate_.TimeLeft(
        progress.wanted_bytes - progress.resident_bytes - progress.failed_bytes, now);
  }
  return progress;
}

std::vector<std::string> Stager::read_errors() const {
  absl::MutexLock lock(&mutex_);
  return read_errors_;
}

void Stager::Stop() {
  absl::MutexLock lock(&mutex_);
  if (stopping_.exchange(true)) return;
  board_->Close();
  WakeLanes();
}

void Stager::AbandonObserver() {
  absl::MutexLock lock(&observer_mutex_);
  observer_ = nullptr;
}

void Stager::AttachLane(size_t lane, StorageReader* reader) {
  absl::MutexLock lock(&mutex_);
  CHECK(lane < lanes_.size() && lanes_[lane].reader == nullptr);
  lanes_[lane].reader = reader;
}

void Stager::DetachLane(size_t lane) {
  absl::MutexLock lock(&mutex_);
  lanes_[lane].reader = nullptr;
}

bool Stager::BudgetAllows(LaneState& lane) {
  const uint64_t bytes = extents_.extent_bytes();
  // A lane has its share, so that no single one reads everything; less than an extent is not.
  if (lane.in_flight_bytes > 0 && lane.in_flight_bytes + bytes > lane_bytes_max_) return false;
  if (in_flight_bytes_ > 0 && in_flight_bytes_ + bytes > in_flight_bytes_max_) {
    lane.waits_for_budget = true;
    return false;
  }
  return true;
}

std::optional<ReadRequest> Stager::Take(size_t lane) {
  absl::MutexLock lock(&mutex_);
  if (stopping() || !BudgetAllows(lanes_[lane])) return std::nullopt;
  const std::optional<DemandQueue::Taken> taken = queue_.Take();
  if (!taken.has_value()) return std::nullopt;
  const Extent extent = extents_.extent(taken->extent);
  in_flight_[taken->extent] = {.cause = taken->cause, .bytes = extent.bytes, .begun = absl::Now()};
  in_flight_bytes_ += extent.bytes;
  lanes_[lane].in_flight_bytes += extent.bytes;
  board_->SetState(taken->extent, ExtentState::kReading);
  return ReadRequest{.file = files_[extent.shard_index].get(),
                     .offset = extent.offset,
                     .bytes = extent.bytes,
                     .tag = taken->extent};
}

void Stager::Tell(const ReadResult& result, const absl::Status& status, const InFlight& read) {
  // The session that shows the errors in the daemon's status may end with them; the log stays.
  if (!status.ok() && !absl::IsCancelled(status) && errors_seen_.fetch_add(1) < kReadErrorsKept) {
    spdlog::warn("read failed path=\"{}\" error=\"{}\"", absl::CEscape(path_label_),
                 absl::CEscape(status.message()));
  }
  absl::ReaderMutexLock lock(&observer_mutex_);
  if (observer_ == nullptr) return;
  if (status.ok()) {
    observer_->OnExtentRead(read.cause, result.storage_bytes, absl::Now() - read.begun);
  } else if (!absl::IsCancelled(status)) {
    observer_->OnReadError(status);
  }
}

void Stager::Finish(size_t lane, const ReadResult& result) {
  absl::Status status = result.status;
  if (status.ok()) status = files_[extents_.extent(result.tag).shard_index]->CheckUnchanged();
  InFlight read;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = in_flight_.find(result.tag);
    CHECK(found != in_flight_.end());
    read = found->second;
    in_flight_.erase(found);
  }
  // Before the board shows it: who waits for the board finds the figures right.
  Tell(result, status, read);

  absl::MutexLock lock(&mutex_);
  in_flight_bytes_ -= read.bytes;
  lanes_[lane].in_flight_bytes -= read.bytes;
  if (status.ok()) {
    queue_.Finish(result.tag, ReadOutcome::kResident);
    read_bytes_ += result.storage_bytes;
    rate_.Add(read.bytes, absl::Now());
    board_->SetState(result.tag, ExtentState::kResident);
  } else if (absl::IsCancelled(status)) {
    queue_.Finish(result.tag, ReadOutcome::kCancelled);
    board_->SetState(result.tag, ExtentState::kAbsent);
  } else {
    queue_.Finish(result.tag, ReadOutcome::kFailed);
    if (read_errors_.size() < kReadErrorsKept) read_errors_.emplace_back(status.message());
    board_->SetState(result.tag, ExtentState::kFailed);
  }
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
  for (LaneState& waiting : lanes_) {
    if (std::exchange(waiting.waits_for_budget, false) && waiting.reader != nullptr) {
      waiting.reader->Wake();
    }
  }
}

}  // namespace forestage
