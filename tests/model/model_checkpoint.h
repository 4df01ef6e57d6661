// A staged checkpoint as the daemon model watches it: the real one, and who demands of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/staging/staged_checkpoint.h"
#include "tests/model/model_storage.h"

namespace forestage {

// Used from the model's thread only.
class ModelCheckpoint : public StagedCheckpoint {
 public:
  // `forgetful`: it tells nobody that a session has gone. `alive` has it as long as it lives.
  ModelCheckpoint(std::shared_ptr<StagedCheckpoint> inner, ModelStorage& storage,
                  ModelStorage::Epoch epoch, bool forgetful, std::set<ModelCheckpoint*>& alive)
      : inner_(std::move(inner)),
        storage_(storage),
        epoch_(epoch),
        forgetful_(forgetful),
        alive_(alive) {
    alive_.insert(this);
  }
  ~ModelCheckpoint() override {
    alive_.erase(this);
    // Who lets go of it last waits for its lanes. They do not begin anything more before they are
    // told to end.
    inner_->Stop();
    storage_.LetRun(epoch_);
    inner_.reset();
  }

  const std::string& path_label() const override { return inner_->path_label(); }
  const CatalogView& catalog() const override { return inner_->catalog(); }
  const ExtentMap& extents() const override { return inner_->extents(); }
  int catalog_fd() const override { return inner_->catalog_fd(); }
  int board_fd() const override { return inner_->board_fd(); }

  absl::Status AddDemand(SessionId session, absl::Span<const DemandItem> items) override {
    const absl::Status status = inner_->AddDemand(session, items);
    if (!status.ok() || items.empty()) return status;
    demanders_.insert(session);
    for (const DemandItem& item : items) {
      const TensorEntryView tensor = catalog().tensor(item.tensor_index);
      const bool whole = item.begin == 0 && item.end == 0;
      Want(session, tensor.shard_index, tensor.begin + item.begin,
           whole ? tensor.end : tensor.begin + item.end);
    }
    return status;
  }
  void AddDemandForEverything(SessionId session) override {
    demanders_.insert(session);
    wants_everything_.insert(session);
    for (uint64_t index = 0; index < extents().extent_count(); ++index) WantAll(session, index);
    inner_->AddDemandForEverything(session);
  }
  void AddUrgent(SessionId session, absl::Span<const uint64_t> extent_indexes) override {
    if (!extent_indexes.empty()) demanders_.insert(session);
    for (const uint64_t index : extent_indexes) {
      if (index < extents().extent_count() && PagesOf(session, index).empty()) {
        WantAll(session, index);
      }
    }
    inner_->AddUrgent(session, extent_indexes);
  }
  void RemoveSession(SessionId session) override {
    if (forgetful_) return;
    demanders_.erase(session);
    pages_.erase(session);
    wants_everything_.erase(session);
    inner_->RemoveSession(session);
  }

  StagingProgress progress() const override { return inner_->progress(); }
  uint64_t CacheableBytes() const override { return inner_->CacheableBytes(); }
  uint64_t CachedBytes() const override { return 0; }
  std::vector<std::string> read_errors() const override { return inner_->read_errors(); }
  void Stop() override { inner_->Stop(); }

  ModelStorage::Epoch epoch() const { return epoch_; }
  const StagedCheckpoint* inner() const { return inner_.get(); }
  const std::set<SessionId>& demanders() const { return demanders_; }
  bool WantsEverything(SessionId session) const { return wants_everything_.contains(session); }
  // The pages of an extent that the session demands, by their offsets in the file.
  std::vector<uint64_t> PagesOf(SessionId session, uint64_t index) const {
    const auto found = pages_.find(session);
    if (found == pages_.end()) return {};
    const Extent extent = extents().extent(index);
    std::vector<uint64_t> pages;
    for (uint64_t page = extent.offset; page < extent.offset + extent.bytes; page += kPageBytes) {
      if (found->second.contains({extent.shard_index, page})) pages.push_back(page);
    }
    return pages;
  }
  static constexpr uint64_t kPageBytes = 4096;

 private:
  void Want(SessionId session, uint32_t shard, uint64_t begin, uint64_t end) {
    if (begin == end) return;
    for (uint64_t page = begin / kPageBytes * kPageBytes; page < end; page += kPageBytes) {
      pages_[session].insert({shard, page});
    }
  }
  void WantAll(SessionId session, uint64_t index) {
    const Extent extent = extents().extent(index);
    Want(session, extent.shard_index, extent.offset, extent.offset + extent.bytes);
  }

  std::shared_ptr<StagedCheckpoint> inner_;
  ModelStorage& storage_;
  const ModelStorage::Epoch epoch_;
  const bool forgetful_;
  std::set<ModelCheckpoint*>& alive_;
  std::set<SessionId> demanders_;
  std::set<SessionId> wants_everything_;
  // Shard and offset.
  std::map<SessionId, std::set<std::pair<uint32_t, uint64_t>>> pages_;
};

}  // namespace forestage
