#include "tests/model/model_storage.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

#include "common/check.h"

namespace forestage {
namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kReadsPerLane = 2;

// Of the lane whose thread this is.
thread_local std::optional<ModelStorage::LaneName> this_lane;

}  // namespace

class ModelStorage::LaneReader : public StorageReader {
 public:
  LaneReader(ModelStorage& storage, LaneName lane) : storage_(storage), lane_(lane) {}
  ~LaneReader() override {
    absl::MutexLock lock(&storage_.mutex_);
    storage_.lanes_.erase(lane_);
  }

  absl::string_view name() const override { return "model"; }
  size_t in_flight_max() const override { return kReadsPerLane; }
  size_t in_flight() const override {
    absl::MutexLock lock(&storage_.mutex_);
    const auto is_mine = [this](const auto& entry) { return entry.second.first.lane == lane_; };
    return static_cast<size_t>(absl::c_count_if(storage_.reads_, is_mine)) +
           storage_.lanes_.at(lane_)->results.size();
  }

  void Start(const ReadRequest& request) override {
    absl::MutexLock lock(&storage_.mutex_);
    const uint64_t id = storage_.next_read_++;
    Read read = {.id = id,
                 .lane = lane_,
                 .file = request.file->name(),
                 .ranges = request.ranges,
                 .ends_well_when_cancelled = id % 3 == 0};
    if (read.ranges.empty()) {
      read.ranges.push_back({.begin = request.offset, .end = request.offset + request.bytes});
    }
    storage_.reads_[id] = {std::move(read), request};
  }

  std::vector<ReadResult> Wait(absl::Time) override {
    this_lane = lane_;
    absl::MutexLock lock(&storage_.mutex_);
    LaneState& lane = *storage_.lanes_.at(lane_);
    lane.taken.clear();
    storage_.Park(lane_, /*halfway=*/false);
    lane.woken = false;
    lane.taken = std::exchange(lane.ended, {});
    return std::exchange(lane.results, {});
  }

  void Wake() override {
    absl::MutexLock lock(&storage_.mutex_);
    if (!storage_.loses_wakes_) storage_.lanes_.at(lane_)->woken = true;
  }

  void Cancel() override {
    absl::MutexLock lock(&storage_.mutex_);
    storage_.lanes_.at(lane_)->cancelled = true;
    if (storage_.RunsByItself(lane_)) storage_.CancelLocked(lane_);
  }

 private:
  ModelStorage& storage_;
  const LaneName lane_;
};

ModelStorage::ModelStorage(bool loses_wakes) : loses_wakes_(loses_wakes) {}

ModelStorage::~ModelStorage() {
  absl::MutexLock lock(&mutex_);
  CHECK(lanes_.empty() && reads_.empty());
}

StorageReaderFactory ModelStorage::MakeFactory() {
  return [this] { return MakeReader(); };
}

absl::StatusOr<std::unique_ptr<StorageReader>> ModelStorage::MakeReader() {
  absl::MutexLock lock(&mutex_);
  if (refuse_) return absl::ResourceExhaustedError("no reader");
  const auto is_mine = [this](const auto& entry) {
    mutex_.AssertHeld();
    return entry.first.epoch == epoch_;
  };
  const LaneName lane = {.epoch = epoch_,
                         .index = static_cast<size_t>(absl::c_count_if(lanes_, is_mine))};
  lanes_[lane] = std::make_unique<LaneState>();
  return std::unique_ptr<StorageReader>(std::make_unique<LaneReader>(*this, lane));
}

ModelStorage::Epoch ModelStorage::BeginEpoch() {
  absl::MutexLock lock(&mutex_);
  return ++epoch_;
}

void ModelStorage::RefuseReaders(bool refuse) {
  absl::MutexLock lock(&mutex_);
  refuse_ = refuse;
}

void ModelStorage::AwaitParked(Epoch epoch) {
  const auto all_parked = [this, epoch] {
    mutex_.AssertHeld();
    return absl::c_all_of(lanes_, [epoch](const auto& entry) {
      return entry.first.epoch != epoch || entry.second->parked;
    });
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&all_parked));
}

void ModelStorage::LetRun(Epoch epoch) {
  absl::MutexLock lock(&mutex_);
  run_by_themselves_.insert(epoch);
  for (const auto& [name, lane] : lanes_) {
    if (name.epoch != epoch) continue;
    if (lane->cancelled) CancelLocked(name);
    if (loses_wakes_) lane->woken = true;
  }
}

bool ModelStorage::IsRunnable(const LaneState& lane) const {
  return lane.parked && (lane.halfway || lane.woken || !lane.results.empty());
}

bool ModelStorage::RunsByItself(LaneName lane) const {
  return run_by_themselves_.contains(lane.epoch);
}

std::vector<ModelStorage::LaneName> ModelStorage::Runnable() const {
  std::vector<LaneName> runnable;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, lane] : lanes_) {
    if (IsRunnable(*lane)) runnable.push_back(name);
  }
  return runnable;
}

void ModelStorage::Run(LaneName lane, bool stop_halfway) {
  const auto stands_again = [this, lane] {
    mutex_.AssertHeld();
    const auto found = lanes_.find(lane);
    return found == lanes_.end() || (found->second->parked && !found->second->granted);
  };
  absl::MutexLock lock(&mutex_);
  LaneState& state = *lanes_.at(lane);
  CHECK(IsRunnable(state));
  state.stop_halfway = stop_halfway;
  state.granted = true;
  mutex_.Await(absl::Condition(&stands_again));
}

bool ModelStorage::IsHalfway(LaneName lane) const {
  absl::MutexLock lock(&mutex_);
  const auto found = lanes_.find(lane);
  return found != lanes_.end() && found->second->halfway;
}

void ModelStorage::Park(LaneName lane, bool halfway) {
  LaneState& state = *lanes_.at(lane);
  state.parked = true;
  state.halfway = halfway;
  const auto may_go_on = [this, lane, &state] {
    mutex_.AssertHeld();
    return state.granted || (RunsByItself(lane) && IsRunnable(state));
  };
  mutex_.Await(absl::Condition(&may_go_on));
  state.granted = false;
  state.parked = false;
  state.halfway = false;
}

void ModelStorage::CancelLocked(LaneName lane) {
  std::vector<Read> mine;
  for (const auto& [id, read] : reads_) {
    if (read.first.lane == lane) mine.push_back(read.first);
  }
  for (const Read& read : mine) {
    EndLocked(read.id,
              read.ends_well_when_cancelled ? absl::OkStatus() : absl::CancelledError("cancelled"),
              /*lies=*/false);
  }
}

std::vector<ModelStorage::Read> ModelStorage::Reads() const {
  std::vector<Read> reads;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, read] : reads_) reads.push_back(read.first);
  return reads;
}

void ModelStorage::End(uint64_t read_id, const absl::Status& status, bool lies) {
  absl::MutexLock lock(&mutex_);
  EndLocked(read_id, status, lies);
}

void ModelStorage::EndLocked(uint64_t read_id, const absl::Status& status, bool lies) {
  const auto found = reads_.find(read_id);
  CHECK(found != reads_.end());
  const auto [read, request] = found->second;
  reads_.erase(found);
  LaneState& lane = *lanes_.at(read.lane);
  uint64_t bytes = 0;
  for (const ByteRange& range : read.ranges) bytes += range.bytes();
  lane.results.push_back(
      {.tag = request.tag, .status = status, .storage_bytes = status.ok() ? bytes : 0});
  lane.ended.push_back(read);
  Pages& pages = pages_[{read.lane.epoch, read.file}];
  const auto changed = changed_before_.find(read.file);
  const bool sound =
      status.ok() && (changed == changed_before_.end() || read.lane.epoch >= changed->second);
  for (const ByteRange& range : read.ranges) {
    for (uint64_t page = range.begin / kPage; page * kPage < range.end; ++page) {
      if (sound && !lies) pages.verified.insert(page);
      if (!status.ok()) pages.failed.insert(page);
    }
  }
}

void ModelStorage::OnFileChanged(const std::string& file) {
  absl::MutexLock lock(&mutex_);
  changed_before_[file] = epoch_ + 1;
}

bool ModelStorage::IsVerified(Epoch epoch, const std::string& file, uint64_t begin,
                              uint64_t end) const {
  absl::MutexLock lock(&mutex_);
  const auto found = pages_.find({epoch, file});
  if (found == pages_.end()) return begin == end;
  for (uint64_t page = begin / kPage; page * kPage < end; ++page) {
    if (!found->second.verified.contains(page)) return false;
  }
  return true;
}

bool ModelStorage::IsVerifiedInPart(Epoch epoch, const std::string& file, uint64_t begin,
                                    uint64_t end) const {
  absl::MutexLock lock(&mutex_);
  const auto found = pages_.find({epoch, file});
  if (found == pages_.end()) return false;
  const auto first = found->second.verified.lower_bound(begin / kPage);
  return first != found->second.verified.end() && *first * kPage < end;
}

bool ModelStorage::HasFailed(Epoch epoch, const std::string& file, uint64_t begin,
                             uint64_t end) const {
  absl::MutexLock lock(&mutex_);
  const auto changed = changed_before_.find(file);
  if (changed != changed_before_.end() && epoch < changed->second) return true;
  const auto found = pages_.find({epoch, file});
  if (found == pages_.end()) return false;
  for (uint64_t page = begin / kPage; page * kPage < end; ++page) {
    if (found->second.failed.contains(page)) return true;
  }
  return false;
}

bool ModelStorage::IsBusy(Epoch epoch, const std::string& file, uint64_t begin,
                          uint64_t end) const {
  const auto touches = [&](const Read& read) {
    return read.lane.epoch == epoch && read.file == file &&
           absl::c_any_of(read.ranges, [begin, end](const ByteRange& range) {
             return range.begin < end && begin < range.end;
           });
  };
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, read] : reads_) {
    if (touches(read.first)) return true;
  }
  for (const auto& [name, lane] : lanes_) {
    if (absl::c_any_of(lane->ended, touches) || absl::c_any_of(lane->taken, touches)) return true;
  }
  return false;
}

size_t ModelStorage::lanes() const {
  absl::MutexLock lock(&mutex_);
  return lanes_.size();
}

void ModelStorage::ParkHalfway() {
  CHECK(this_lane.has_value());
  absl::MutexLock lock(&mutex_);
  LaneState& lane = *lanes_.at(*this_lane);
  if (!lane.stop_halfway || RunsByItself(*this_lane)) return;
  lane.stop_halfway = false;
  Park(*this_lane, /*halfway=*/true);
}

void ModelStorage::OnExtentRead(ReadCause, uint64_t, absl::Duration) { ParkHalfway(); }

void ModelStorage::OnReadError(const absl::Status&) { ParkHalfway(); }

}  // namespace forestage
