// A store in memory, for tests of sessions: one shard, two tensors, no lanes. Tests say when an
// Acquire ends, and with what.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "checkpoint/catalog.h"
#include "checkpoint/extent.h"
#include "common/check.h"
#include "common/memfd.h"
#include "common/staging_board.h"
#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Thread-safe. Its signature is that of the first shard's mtime.
class StagedCheckpointFake : public StagedCheckpoint {
 public:
  static constexpr uint64_t kShardBytes = 4096;
  static constexpr uint64_t kTensorBytes = 16;

  StagedCheckpointFake(std::string path_label, int64_t mtime_ns)
      : path_label_(std::move(path_label)),
        catalog_bytes_(MakeCatalog(mtime_ns)),
        catalog_(*CatalogView::FromBytes(catalog_bytes_)),
        extents_({kShardBytes}, 4096),
        catalog_fd_(*MakeSealedMemfd("catalog", catalog_bytes_)),
        board_(*StagingBoard::Create({.extent_count = 1, .extent_bytes = 4096, .generation = 7})) {}

  const std::string& path_label() const override { return path_label_; }
  const CatalogView& catalog() const override { return catalog_; }
  const ExtentMap& extents() const override { return extents_; }
  int catalog_fd() const override { return catalog_fd_.get(); }
  int board_fd() const override { return board_->fd(); }

  absl::Status AddDemand(SessionId session, absl::Span<const DemandItem> items) override {
    for (const DemandItem& item : items) {
      if (item.tensor_index >= catalog_.tensor_count()) {
        return absl::InvalidArgumentError("no such tensor");
      }
    }
    absl::MutexLock lock(&mutex_);
    demanded_[session] += items.size();
    return absl::OkStatus();
  }
  void AddDemandForEverything(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    demanded_[session] += catalog_.tensor_count();
  }
  void AddUrgent(SessionId session, absl::Span<const uint64_t> extent_indexes) override {
    absl::MutexLock lock(&mutex_);
    urgent_[session] += extent_indexes.size();
  }
  void RemoveSession(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    demanded_.erase(session);
    holding_.erase(session);
  }
  void HoldReadAhead(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    holding_.insert(session);
  }
  void ReleaseReadAhead(SessionId session) override {
    absl::MutexLock lock(&mutex_);
    holding_.erase(session);
  }
  StagingProgress progress() const override {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }
  uint64_t CacheableBytes() const override { return kShardBytes; }
  uint64_t CachedBytes() const override {
    absl::MutexLock lock(&mutex_);
    return cached_bytes_;
  }
  std::vector<std::string> read_errors() const override { return {}; }
  void Stop() override { board_->Close(); }

  // How many items the session demands now.
  size_t demanded(SessionId session) const {
    absl::MutexLock lock(&mutex_);
    const auto found = demanded_.find(session);
    return found == demanded_.end() ? 0 : found->second;
  }
  size_t sessions_demanding() const {
    absl::MutexLock lock(&mutex_);
    return demanded_.size();
  }
  // Those for which nothing is read ahead now.
  std::set<SessionId> holding() const {
    absl::MutexLock lock(&mutex_);
    return holding_;
  }
  void SetCachedBytes(uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    cached_bytes_ = bytes;
  }
  void SetProgress(const StagingProgress& progress) {
    absl::MutexLock lock(&mutex_);
    progress_ = progress;
  }

 private:
  static std::vector<std::byte> MakeCatalog(int64_t mtime_ns) {
    CatalogShard shard;
    shard.name = "model.safetensors";
    shard.mtime_ns = mtime_ns;
    shard.header.data_begin = kShardBytes - 2 * kTensorBytes;
    shard.header.file_bytes = kShardBytes;
    const uint64_t begin = shard.header.data_begin;
    shard.header.tensors = {
        {.name = "a", .dtype = Dtype::kU8, .shape = {16}, .begin = begin, .end = begin + 16},
        {.name = "b", .dtype = Dtype::kU8, .shape = {16}, .begin = begin + 16, .end = begin + 32}};
    auto bytes = BuildCatalog({shard});
    CHECK(bytes.ok());
    return *std::move(bytes);
  }

  const std::string path_label_;
  const std::vector<std::byte> catalog_bytes_;
  const CatalogView catalog_;
  const ExtentMap extents_;
  const UniqueFd catalog_fd_;
  const std::unique_ptr<StagingBoard> board_;

  mutable absl::Mutex mutex_;
  std::map<SessionId, size_t> demanded_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionId, size_t> urgent_ ABSL_GUARDED_BY(mutex_);
  std::set<SessionId> holding_ ABSL_GUARDED_BY(mutex_);
  StagingProgress progress_ ABSL_GUARDED_BY(mutex_);
  uint64_t cached_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe. One checkpoint a mtime of the first shard.
class CheckpointStoreFake : public CheckpointStore {
 public:
  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(const std::string& path_label,
                                                            std::vector<ReceivedShard> shards,
                                                            size_t lane_count) override {
    absl::MutexLock lock(&mutex_);
    last_lane_count_ = lane_count;
    mutex_.Await(absl::Condition(
        +[](bool* held) { return !*held; }, &held_));
    if (!error_.ok()) return error_;
    std::weak_ptr<StagedCheckpointFake>& entry = checkpoints_[shards[0].mtime_ns];
    std::shared_ptr<StagedCheckpointFake> checkpoint = entry.lock();
    if (checkpoint == nullptr) {
      checkpoint = std::make_shared<StagedCheckpointFake>(path_label, shards[0].mtime_ns);
      entry = checkpoint;
    }
    return std::shared_ptr<StagedCheckpoint>(checkpoint);
  }
  std::vector<std::shared_ptr<StagedCheckpoint>> List() const override {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<StagedCheckpoint>> all;
    for (const auto& [mtime, weak] : checkpoints_) {
      if (auto checkpoint = weak.lock()) all.push_back(std::move(checkpoint));
    }
    return all;
  }
  void Stop() override {}
  std::string reader_name() const override { return "fake"; }
  std::string reader_reason() const override { return "test"; }

  // While held, Acquire blocks.
  void Hold(bool held) {
    absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  void FailWith(absl::Status error) {
    absl::MutexLock lock(&mutex_);
    error_ = std::move(error);
  }
  std::shared_ptr<StagedCheckpointFake> checkpoint(int64_t mtime_ns) {
    absl::MutexLock lock(&mutex_);
    return checkpoints_[mtime_ns].lock();
  }
  size_t last_lane_count() const {
    absl::MutexLock lock(&mutex_);
    return last_lane_count_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  size_t last_lane_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::weak_ptr<StagedCheckpointFake>> checkpoints_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
