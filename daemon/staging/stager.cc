#include "daemon/staging/stager.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

#include "common/check.h"
#include "common/mount_probe.h"
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
      board_(std::move(options.board)),
      waker_(std::make_shared<LaneWaker>()),
      lane_bytes_(options.lane_count, 0),
      observer_(options.observer) {
  CHECK(board_->extent_count() == extents_.extent_count() && options.lane_count > 0);
  std::vector<uint64_t> devices;
  for (const std::unique_ptr<ShardFile>& file : files_) {
    const auto known = absl::c_find(devices, file->identity().device);
    part_of_shard_.push_back(static_cast<size_t>(known - devices.begin()));
    if (known == devices.end()) devices.push_back(file->identity().device);
  }
  for (const uint64_t device : devices) {
    parts_.emplace_back(options.budget->Join(device, waker_), extents_);
  }
}

Stager::MountPart& Stager::PartOf(uint64_t extent) {
  return parts_[part_of_shard_[extents_.extent(extent).shard_index]];
}

std::vector<ExtentRange> Stager::CutByMount(ExtentRange range) {
  if (parts_.size() == 1) return {range};
  std::vector<ExtentRange> ranges;
  for (uint64_t extent = range.first; extent < range.last; ++extent) {
    if (!ranges.empty() && &PartOf(extent) == &PartOf(ranges.back().first)) {
      ranges.back().last = extent + 1;
    } else {
      ranges.push_back({.first = extent, .last = extent + 1});
    }
  }
  return ranges;
}

void Stager::AddDemand(SessionId session, absl::Span<const ExtentRange> ranges) {
  absl::MutexLock lock(&mutex_);
  for (const ExtentRange& range : ranges) {
    if (range.first == range.last) continue;
    for (const ExtentRange& part : CutByMount(range)) PartOf(part.first).queue.Add(session, part);
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
    PartOf(extent).queue.AddUrgent(session, extent);
    if (stopping()) continue;
    board_->CompareAndSetState(extent, ExtentState::kAbsent, ExtentState::kQueued);
    board_->CompareAndSetState(extent, ExtentState::kFailed, ExtentState::kQueued);
  }
  OnDemandChanged();
}

void Stager::RemoveSession(SessionId session) {
  absl::MutexLock lock(&mutex_);
  for (MountPart& part : parts_) {
    for (const ExtentRange& range : part.queue.RemoveSession(session)) {
      board_->CompareAndSetStates(range.first, range.last, ExtentState::kQueued,
                                  ExtentState::kAbsent);
    }
    if (!part.queue.HasQueued()) part.share->Withdraw();
  }
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
}

void Stager::OnDemandChanged() {
  const absl::Time now = absl::Now();
  // The time in which nothing was wanted is not part of a rate.
  if (first_demand_ > now || completed_ <= now) rate_.Begin(now);
  first_demand_ = std::min(first_demand_, now);
  completed_ = IsComplete() ? std::min(completed_, now) : absl::InfiniteFuture();
  waker_->WakeAll();
}

StagingProgress Stager::Sums() const {
  StagingProgress sums;
  for (const MountPart& part : parts_) {
    sums.wanted_bytes += part.queue.wanted_bytes();
    sums.resident_bytes += part.queue.resident_bytes();
    sums.failed_bytes += part.queue.failed_bytes();
  }
  return sums;
}

bool Stager::IsComplete() const {
  if (first_demand_ == absl::InfiniteFuture()) return false;
  const StagingProgress sums = Sums();
  return sums.wanted_bytes == sums.resident_bytes + sums.failed_bytes;
}

uint64_t Stager::CacheableBytes() const {
  uint64_t bytes = 0;
  for (const std::unique_ptr<ShardFile>& file : files_) {
    if (!file->probe().mount.memory) bytes += file->bytes();
  }
  return bytes;
}

uint64_t Stager::CachedBytes() const {
  uint64_t bytes = 0;
  for (const std::unique_ptr<ShardFile>& file : files_) {
    if (!file->probe().mount.memory) bytes += file->CachedBytes();
  }
  return bytes;
}

StagingProgress Stager::progress() const {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  StagingProgress progress = Sums();
  progress.read_bytes = read_bytes_;
  progress.complete = IsComplete();
  progress.bytes_per_second = rate_.BytesPerSecond(now);
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
  std::vector<std::string> errors;
  {
    absl::MutexLock lock(&mutex_);
    errors = read_errors_;
  }
  // What was staged of a file that was changed since is of use to nobody, though no read says so.
  for (const std::unique_ptr<ShardFile>& file : files_) {
    const absl::Status unchanged = file->CheckUnchanged();
    if (unchanged.ok() || absl::c_linear_search(errors, unchanged.message())) continue;
    if (errors.size() >= 2 * kReadErrorsKept) break;
    errors.emplace_back(unchanged.message());
  }
  return errors;
}

void Stager::Stop() {
  absl::MutexLock lock(&mutex_);
  if (stopping_.exchange(true)) return;
  board_->Close();
  for (MountPart& part : parts_) part.share->Withdraw();
  waker_->WakeAll();
}

void Stager::AbandonObserver() {
  absl::MutexLock lock(&observer_mutex_);
  observer_ = nullptr;
}

void Stager::AttachLane(StorageReader* reader) { waker_->Attach(reader); }

void Stager::DetachLane(StorageReader* reader) { waker_->Detach(reader); }

bool Stager::LaneMayTake(size_t lane, const MountPart& part) {
  if (lane_bytes_[lane] == 0) return true;
  const uint64_t extents = part.share->limit_bytes() / extents_.extent_bytes();
  const uint64_t share =
      extents / lane_bytes_.size() + (lane < extents % lane_bytes_.size() ? 1 : 0);
  return lane_bytes_[lane] + extents_.extent_bytes() <= share * extents_.extent_bytes();
}

std::optional<ReadRequest> Stager::TakeFrom(MountPart& part, size_t lane) {
  // The place must be there before it is known how much of it is needed.
  const uint64_t place = extents_.extent_bytes();
  if (!part.queue.HasQueued() || !part.share->TryTake(place, part.queue.IsUrgent())) {
    return std::nullopt;
  }
  const std::optional<DemandQueue::Taken> taken = part.queue.Take();
  CHECK(taken.has_value());
  const Extent extent = extents_.extent(taken->extent);
  in_flight_[taken->extent] = {.cause = taken->cause, .bytes = extent.bytes, .begun = absl::Now()};
  if (extent.bytes < place) part.share->Give(place - extent.bytes, 0, absl::Now());
  lane_bytes_[lane] += extent.bytes;
  board_->SetState(taken->extent, ExtentState::kReading);
  return ReadRequest{.file = files_[extent.shard_index].get(),
                     .offset = extent.offset,
                     .bytes = extent.bytes,
                     .tag = taken->extent};
}

std::optional<ReadRequest> Stager::Take(size_t lane) {
  absl::MutexLock lock(&mutex_);
  if (stopping()) return std::nullopt;
  for (size_t tried = 0; tried < parts_.size(); ++tried) {
    MountPart& part = parts_[next_part_];
    next_part_ = (next_part_ + 1) % parts_.size();
    // A rank waits for what is urgent: it must not wait for the reads before it too.
    if (!part.queue.IsUrgent() && !LaneMayTake(lane, part)) continue;
    std::optional<ReadRequest> request = TakeFrom(part, lane);
    if (request.has_value()) return request;
  }
  return std::nullopt;
}

void Stager::ReportStuckReads(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (auto& [index, read] : in_flight_) {
    if (read.stuck || now - read.begun < kStuckReadTime) continue;
    read.stuck = true;
    PartOf(index).share->SetStuck(read.bytes);
    const Extent extent = extents_.extent(index);
    const ShardFile& file = *files_[extent.shard_index];
    spdlog::warn(
        "read stuck path=\"{}\" file=\"{}\" offset={} bytes={} device={} seconds={:.0f}; its "
        "storage does not answer; ranks read these bytes themselves",
        absl::CEscape(path_label_), absl::CEscape(file.name()), extent.offset, extent.bytes,
        DeviceText(file.identity().device), absl::ToDoubleSeconds(now - read.begun));
  }
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
  MountPart& part = PartOf(result.tag);
  lane_bytes_[lane] -= read.bytes;
  if (status.ok()) {
    part.queue.Finish(result.tag, ReadOutcome::kResident);
    read_bytes_ += result.storage_bytes;
    rate_.Add(read.bytes, absl::Now());
    board_->SetState(result.tag, ExtentState::kResident);
  } else if (absl::IsCancelled(status)) {
    part.queue.Finish(result.tag, ReadOutcome::kCancelled);
    board_->SetState(result.tag, ExtentState::kAbsent);
  } else {
    part.queue.Finish(result.tag, ReadOutcome::kFailed);
    if (read_errors_.size() < kReadErrorsKept) read_errors_.emplace_back(status.message());
    board_->SetState(result.tag, ExtentState::kFailed);
  }
  if (read.stuck) part.share->ClearStuck(read.bytes);
  part.share->Give(read.bytes, status.ok() ? result.storage_bytes : 0, absl::Now());
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
}

}  // namespace forestage
