#include "daemon/staging/stager.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <sys/sysmacros.h>

#include "common/check.h"
#include "common/mount_probe.h"
#include "common/units.h"
#include "daemon/limits.h"
#include "daemon/storage/read_piece.h"

namespace forestage {
namespace {

std::vector<uint64_t> SizesOf(absl::Span<const std::unique_ptr<ShardFile>> files) {
  std::vector<uint64_t> sizes;
  for (const std::unique_ptr<ShardFile>& file : files) sizes.push_back(file->bytes());
  return sizes;
}

// Parts of an extent, as ranges of its file.
std::vector<ByteRange> OfFile(const Extent& extent, const ExtentParts& parts) {
  std::vector<ByteRange> ranges;
  ranges.reserve(parts.ranges().size());
  for (const ExtentParts::Range& range : parts.ranges()) {
    ranges.push_back({.begin = extent.offset + range.begin, .end = extent.offset + range.end});
  }
  return ranges;
}

}  // namespace

Stager::Stager(Options options)
    : path_label_(std::move(options.path_label)),
      files_(std::move(options.files)),
      extents_(SizesOf(files_), options.extent_bytes),
      board_(std::move(options.board)),
      waker_(std::make_shared<LaneWaker>()),
      first_extent_(FirstExtent(options.read_order, options.node_hash)),
      lane_bytes_(options.lane_count, 0),
      hold_(options.hold_max),
      observer_(options.observer) {
  CHECK(board_->extent_count() == extents_.extent_count() && options.lane_count > 0);
  std::vector<uint64_t> devices;
  for (const std::unique_ptr<ShardFile>& file : files_) {
    const uint64_t device = file->identity().device;
    const auto known = absl::c_find(devices, device);
    part_of_shard_.push_back(static_cast<size_t>(known - devices.begin()));
    if (known != devices.end()) continue;
    devices.push_back(device);
    const bool may_be_held = absl::c_any_of(files_, [&](const std::unique_ptr<ShardFile>& other) {
      return other->identity().device == device &&
             other->probe().mount.magic == options.held_file_system;
    });
    const uint64_t rate = options.read_rate_limits.Of(file->probe().mount.type);
    parts_.emplace_back(options.budget->Join(device, rate, waker_), may_be_held, extents_);
  }
}

uint64_t Stager::FirstExtent(ReadOrder order, uint64_t node_hash) const {
  if (extents_.extent_count() == 0 || order == ReadOrder::kFile) return 0;
  // Without a block device of its own a file system is mostly other nodes' too.
  const auto is_local = [](const std::unique_ptr<ShardFile>& file) {
    return file->probe().mount.memory || major(file->identity().device) != 0;
  };
  if (order == ReadOrder::kAuto && absl::c_all_of(files_, is_local)) return 0;
  return node_hash % extents_.extent_count();
}

Stager::MountPart& Stager::PartOf(uint64_t extent) {
  return parts_[part_of_shard_[extents_.extent(extent).shard_index]];
}

void Stager::ShowQueued(ExtentRange range) {
  // Who stops reads nothing any more, but shows nothing as resident of which more is demanded now.
  const ExtentState shown = stopping() ? ExtentState::kAbsent : ExtentState::kQueued;
  for (const ExtentState before :
       {ExtentState::kAbsent, ExtentState::kFailed, ExtentState::kResident}) {
    board_->CompareAndSetStates(range.first, range.last, before, shown);
  }
}

void Stager::AddRange(SessionId session, const ShardRange& range) {
  const auto [first, last] = extents_.Covering(range.shard_index, range.begin, range.end);
  DemandQueue& queue = parts_[part_of_shard_[range.shard_index]].queue;
  const auto add_part = [&](uint64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Extent extent = extents_.extent(index);
    const uint64_t begin = std::max(range.begin, extent.offset) - extent.offset;
    const uint64_t end = std::min(range.end, extent.offset + extent.bytes) - extent.offset;
    if (queue.AddPart(session, index,
                      {.begin = static_cast<uint32_t>(begin), .end = static_cast<uint32_t>(end)})) {
      ShowQueued({.first = index, .last = index + 1});
    }
  };
  if (first == last) return;
  add_part(first);
  if (last - first > 2) {
    for (const ExtentRange& queued : queue.Add(session, {.first = first + 1, .last = last - 1})) {
      ShowQueued(queued);
    }
  }
  if (last - first > 1) add_part(last - 1);
}

void Stager::AddDemand(SessionId session, absl::Span<const ShardRange> ranges) {
  absl::MutexLock lock(&mutex_);
  for (const ShardRange& range : ranges) AddRange(session, range);
  OnDemandChanged();
}

void Stager::AddDemandForEverything(SessionId session) {
  absl::MutexLock lock(&mutex_);
  const uint64_t count = extents_.extent_count();
  if (first_extent_ > 0) {
    AddExtents(session,
               {.first = 0,
                .last = std::min(first_extent_,
                                 DivideRoundingUp(kReadFirstBytes, extents_.extent_bytes()))});
  }
  AddExtents(session, {.first = first_extent_, .last = count});
  // Those that it demands already it keeps where they are.
  AddExtents(session, {.first = 0, .last = first_extent_});
  OnDemandChanged();
}

void Stager::AddExtents(SessionId session, ExtentRange range) {
  // Each mount has a queue of its own.
  while (range.first < range.last) {
    MountPart& part = PartOf(range.first);
    uint64_t last = range.first + 1;
    while (last < range.last && &PartOf(last) == &part) ++last;
    for (const ExtentRange& queued :
         part.queue.Add(session, {.first = range.first, .last = last})) {
      ShowQueued(queued);
    }
    range.first = last;
  }
}

void Stager::AddUrgent(SessionId session, absl::Span<const uint64_t> extents) {
  absl::MutexLock lock(&mutex_);
  for (const uint64_t extent : extents) {
    if (PartOf(extent).queue.AddUrgent(session, extent)) {
      ShowQueued({.first = extent, .last = extent + 1});
    }
  }
  OnDemandChanged();
}

void Stager::RemoveSession(SessionId session) {
  absl::MutexLock lock(&mutex_);
  for (MountPart& part : parts_) {
    const DemandQueue::Removed removed = part.queue.RemoveSession(session);
    for (const ExtentRange& range : removed.idle) {
      board_->CompareAndSetStates(range.first, range.last, ExtentState::kQueued,
                                  ExtentState::kAbsent);
    }
    for (const ExtentRange& range : removed.resident) {
      board_->CompareAndSetStates(range.first, range.last, ExtentState::kQueued,
                                  ExtentState::kResident);
    }
    if (!part.queue.HasQueued()) part.share->Withdraw();
  }
  if (hold_.End(session, absl::Now())) waker_->WakeAll();
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
}

void Stager::HoldReadAhead(SessionId session) {
  absl::MutexLock lock(&mutex_);
  hold_.Begin(session, absl::Now());
  if (!hold_.holds(absl::Now())) return;
  for (MountPart& part : parts_) {
    // Others on the mount need not leave it the place that it was refused.
    if (part.may_be_held) part.share->Withdraw();
  }
}

void Stager::ReleaseReadAhead(SessionId session) {
  absl::MutexLock lock(&mutex_);
  if (hold_.End(session, absl::Now())) waker_->WakeAll();
}

void Stager::OnDemandChanged() {
  const absl::Time now = absl::Now();
  // The time in which nothing was wanted is not part of a rate.
  if (first_demand_ > now || completed_ <= now) rate_.Begin(now);
  first_demand_ = std::min(first_demand_, now);
  completed_ = IsComplete() ? std::min(completed_, now) : absl::InfiniteFuture();
  const auto has_queued = [](const MountPart& part) { return part.queue.HasQueued(); };
  if (absl::c_any_of(parts_, has_queued)) waker_->WakeAll();
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

std::vector<UnansweredRead> Stager::StuckReads(absl::Time now) const {
  std::vector<uint64_t> indexes;
  for (const auto& [index, read] : in_flight_) {
    if (read.stuck) indexes.push_back(index);
  }
  absl::c_sort(indexes);
  indexes.resize(std::min(indexes.size(), kStuckReadsShown));
  std::vector<UnansweredRead> reads;
  for (const uint64_t index : indexes) {
    const Extent extent = extents_.extent(index);
    reads.push_back({.file = files_[extent.shard_index]->name(),
                     .offset = extent.offset,
                     .bytes = extent.bytes,
                     .age = now - in_flight_.at(index).begun});
  }
  return reads;
}

StagingProgress Stager::progress() const {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mutex_);
  StagingProgress progress = Sums();
  progress.read_bytes = read_bytes_;
  progress.stuck_reads = StuckReads(now);
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
  std::vector<bool> told(files_.size());
  {
    absl::MutexLock lock(&mutex_);
    errors = read_errors_.Messages();
    for (uint32_t i = 0; i < files_.size(); ++i) told[i] = read_errors_.TellsOfWholeFile(i);
  }
  // What was staged of a file that was changed since is of use to nobody, though no read says so.
  for (size_t i = 0; i < files_.size(); ++i) {
    if (told[i]) continue;
    const absl::Status unchanged = files_[i]->CheckUnchanged();
    if (unchanged.ok()) continue;
    if (errors.size() > 2 * kReadErrorsKept) break;
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

std::vector<ByteRange> Stager::DemandedAround(const DemandQueue& queue, uint64_t index) {
  std::vector<ByteRange> demanded = OfFile(extents_.extent(index), queue.DemandedOf(index));
  // Its sessions may have gone.
  if (demanded.empty()) return demanded;
  const Extent extent = extents_.extent(index);
  const ShardFile& file = *files_[extent.shard_index];
  // Back to the beginning of the block that a fault would read, and on to the end of what the
  // kernel may read ahead of it.
  uint64_t& begin = demanded.front().begin;
  const uint64_t begin_min = AlignDown(begin, kFaultBlockBytes);
  for (uint64_t i = index; begin > begin_min && begin == extents_.extent(i).offset;) {
    const std::vector<ByteRange> before = OfFile(extents_.extent(i - 1), queue.DemandedOf(i - 1));
    if (before.empty() || before.back().end != begin) break;
    begin = before.back().begin;
    --i;
  }
  uint64_t& end = demanded.back().end;
  const uint64_t end_max =
      std::min(file.bytes(), extent.offset + extent.bytes + ReachOfFault(file));
  for (uint64_t i = index; end < end_max; ++i) {
    const Extent last = extents_.extent(i);
    if (end != last.offset + last.bytes) break;
    const std::vector<ByteRange> after = OfFile(extents_.extent(i + 1), queue.DemandedOf(i + 1));
    if (after.empty() || after.front().begin != end) break;
    end = after.front().end;
  }
  return demanded;
}

ReadRequest Stager::RequestFor(const DemandQueue& queue, uint64_t index) {
  const Extent extent = extents_.extent(index);
  ReadRequest request = {.file = files_[extent.shard_index].get(),
                         .offset = extent.offset,
                         .bytes = extent.bytes,
                         .tag = index};
  request.ranges = OfFile(extent, queue.PartsOf(index));
  request.demanded = DemandedAround(queue, index);
  return request;
}

Stager::Work Stager::TakeFrom(MountPart& part, size_t lane, absl::Time now) {
  if (!part.queue.HasQueued()) return {};
  // The place must be there before it is known how much of it is needed.
  const uint64_t place_bytes = extents_.extent_bytes();
  const FlightBudget::Place place = part.share->TryTake(place_bytes, part.queue.IsUrgent(), now);
  if (!place.taken) {
    if (place.again != absl::InfiniteFuture()) board_->NoteHeldBack();
    return {.request = std::nullopt, .again = place.again};
  }
  const std::optional<DemandQueue::Taken> taken = part.queue.Take();
  CHECK(taken.has_value());
  const uint64_t bytes = part.queue.PartsOf(taken->extent).bytes();
  in_flight_[taken->extent] = {.cause = taken->cause, .bytes = bytes, .begun = now};
  if (bytes < place_bytes) part.share->GiveBack(place_bytes - bytes, now);
  lane_bytes_[lane] += bytes;
  board_->SetState(taken->extent, ExtentState::kReading);
  return {.request = RequestFor(part.queue, taken->extent)};
}

Stager::Work Stager::Take(size_t lane) {
  absl::MutexLock lock(&mutex_);
  Work none;
  if (stopping()) return none;
  const absl::Time now = absl::Now();
  for (size_t tried = 0; tried < parts_.size(); ++tried) {
    MountPart& part = parts_[next_part_];
    next_part_ = (next_part_ + 1) % parts_.size();
    // A rank waits for what is urgent: it must not wait for the reads before it too.
    const bool urgent = part.queue.IsUrgent();
    if (!urgent && part.may_be_held && hold_.holds(now)) {
      none.again = std::min(none.again, hold_.EndsAt(now));
      continue;
    }
    if (!urgent && !LaneMayTake(lane, part)) continue;
    Work work = TakeFrom(part, lane, now);
    if (work.request.has_value()) return work;
    none.again = std::min(none.again, work.again);
  }
  return none;
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

void Stager::Tell(const ReadResult& result, const absl::Status& status, const InFlight& read,
                  bool error_is_kept) {
  // The session that shows the errors in the daemon's status may end with them; the log stays.
  if (error_is_kept) {
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
  const Extent extent = extents_.extent(result.tag);
  const ShardFile& file = *files_[extent.shard_index];
  absl::Status status = result.status;
  if (status.ok()) status = file.CheckUnchanged();
  InFlight read;
  bool error_is_kept = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!status.ok() && !absl::IsCancelled(status)) {
      error_is_kept = read_errors_.Add(
          {.shard_index = extent.shard_index, .offset = extent.offset, .status = status});
    }
    const auto found = in_flight_.find(result.tag);
    CHECK(found != in_flight_.end());
    read = found->second;
    in_flight_.erase(found);
  }
  // Before the board shows it: who waits for the board finds the figures right.
  Tell(result, status, read, error_is_kept);

  absl::MutexLock lock(&mutex_);
  MountPart& part = PartOf(result.tag);
  lane_bytes_[lane] -= read.bytes;
  if (status.ok()) {
    const bool again = part.queue.Finish(
        result.tag, result.all_cached ? ReadOutcome::kAllResident : ReadOutcome::kResident);
    read_bytes_ += result.storage_bytes;
    rate_.Add(read.bytes, absl::Now());
    board_->SetState(result.tag, again ? ExtentState::kQueued : ExtentState::kResident);
  } else if (absl::IsCancelled(status)) {
    part.queue.Finish(result.tag, ReadOutcome::kCancelled);
    board_->SetState(result.tag, ExtentState::kAbsent);
  } else {
    part.queue.Finish(result.tag, ReadOutcome::kFailed);
    file.mount().SawReadFail();
    board_->SetState(result.tag, ExtentState::kFailed);
  }
  if (read.stuck) part.share->ClearStuck(read.bytes);
  part.share->Give(read.bytes, status.ok() ? std::optional(result.storage_bytes) : std::nullopt,
                   absl::Now());
  if (IsComplete()) completed_ = std::min(completed_, absl::Now());
}

}  // namespace forestage
