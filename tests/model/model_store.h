// The daemon's own store of checkpoints, watched by the daemon model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "daemon/staging/striped_checkpoint_store.h"
#include "tests/model/model_checkpoint.h"
#include "tests/model/model_storage.h"

namespace forestage {

// Used from the model's thread only.
class ModelStore : public CheckpointStore {
 public:
  struct Hooks {
    // Before and after files are opened: what happens elsewhere meanwhile.
    std::function<void()> meanwhile;
    // A checkpoint that was not held before.
    std::function<void(const ModelCheckpoint& checkpoint)> on_built;
    // One that is held is given to one more.
    std::function<void()> on_shared;
  };

  ModelStore(std::unique_ptr<StripedCheckpointStore> inner, ModelStorage& storage, Hooks hooks,
             bool forgetful)
      : inner_(std::move(inner)),
        storage_(storage),
        hooks_(std::move(hooks)),
        forgetful_(forgetful) {}

  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(const std::string& path_label,
                                                            std::vector<ReceivedShard> shards,
                                                            size_t lane_count) override {
    hooks_.meanwhile();
    const ModelStorage::Epoch epoch = storage_.BeginEpoch();
    absl::StatusOr<std::shared_ptr<StagedCheckpoint>> acquired =
        inner_->Acquire(path_label, std::move(shards), lane_count);
    if (!acquired.ok()) return acquired.status();
    std::weak_ptr<ModelCheckpoint>& known = known_[acquired->get()];
    std::shared_ptr<ModelCheckpoint> checkpoint = known.lock();
    if (checkpoint == nullptr) {
      storage_.AwaitParked(epoch);
      checkpoint = std::make_shared<ModelCheckpoint>(*std::move(acquired), storage_, epoch,
                                                     forgetful_, alive_);
      known = checkpoint;
      hooks_.on_built(*checkpoint);
    } else {
      hooks_.on_shared();
    }
    hooks_.meanwhile();
    return std::shared_ptr<StagedCheckpoint>(std::move(checkpoint));
  }
  std::vector<std::shared_ptr<StagedCheckpoint>> List() const override { return inner_->List(); }
  void Stop() override {
    stopped_ = true;
    inner_->Stop();
  }
  std::string reader_name() const override { return inner_->reader_name(); }
  std::string reader_reason() const override { return inner_->reader_reason(); }

  bool stopped() const { return stopped_; }
  uint64_t generation() const { return inner_->generation(); }
  const std::set<ModelCheckpoint*>& alive() const { return alive_; }

 private:
  const std::unique_ptr<StripedCheckpointStore> inner_;
  ModelStorage& storage_;
  const Hooks hooks_;
  const bool forgetful_;
  bool stopped_ = false;
  std::map<const StagedCheckpoint*, std::weak_ptr<ModelCheckpoint>> known_;
  std::set<ModelCheckpoint*> alive_;
};

}  // namespace forestage
