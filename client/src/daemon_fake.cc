#include "client/src/daemon_fake.h"

#include <fcntl.h>

#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/extent.h"
#include "checkpoint/safetensors_header.h"
#include "common/check.h"
#include "common/memfd.h"
#include "common/status_macros.h"

namespace forestage {

class DaemonFake::Connection : public DaemonSession {
 public:
  explicit Connection(DaemonFake& fake) : fake_(fake) {}
  ~Connection() override { Close(); }

  void SendDemand(absl::Span<const DemandedBytes> items) override {
    absl::MutexLock lock(&fake_.mutex_);
    fake_.demand_.insert(fake_.demand_.end(), items.begin(), items.end());
  }
  void SendUrgent(absl::Span<const uint64_t> extent_indexes) override {
    {
      absl::MutexLock lock(&fake_.mutex_);
      fake_.urgent_.insert(fake_.urgent_.end(), extent_indexes.begin(), extent_indexes.end());
    }
    if (fake_.on_urgent) fake_.on_urgent(fake_, extent_indexes);
  }
  void SendConsumed(uint32_t tensor_index) override {
    absl::MutexLock lock(&fake_.mutex_);
    fake_.consumed_.push_back(tensor_index);
  }
  absl::StatusOr<StagingStatus> GetProgress(absl::Time) override {
    ++fake_.progress_requests_;
    if (fake_.on_progress) fake_.on_progress(fake_);
    return fake_.progress;
  }
  void Close() override {
    if (!closed_.exchange(true)) ++fake_.closes_;
  }

 private:
  DaemonFake& fake_;
  std::atomic<bool> closed_ = false;
};

DaemonConnector DaemonFake::connector() {
  return [this](const DaemonOpenRequest& request, std::shared_ptr<DaemonLoss> loss) {
    return Welcome(request, std::move(loss));
  };
}

absl::StatusOr<DaemonWelcome> DaemonFake::Welcome(const DaemonOpenRequest& request,
                                                  std::shared_ptr<DaemonLoss> loss) {
  ++opens_;
  {
    absl::MutexLock lock(&mutex_);
    request_ = request;
  }
  RETURN_IF_ERROR(refusal);
  std::vector<CatalogShard> shards;
  std::vector<uint64_t> shard_bytes;
  for (const OfferedShard& shard : request.shards) {
    ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(shard.fd, shard.name));
    shards.push_back({.name = shard.name, .mtime_ns = shard.mtime_ns, .header = std::move(header)});
    shard_bytes.push_back(shard.bytes);
  }
  ASSIGN_OR_RETURN(std::vector<std::byte> catalog, BuildCatalog(shards));
  if (damage_catalog) damage_catalog(catalog);
  const ExtentMap extents(shard_bytes, kExtentBytes);
  StagingBoard::Options options = {.extent_count = extents.extent_count(),
                                   .extent_bytes = kExtentBytes,
                                   .generation = kGeneration};
  if (damage_board) damage_board(options);
  ASSIGN_OR_RETURN(board_, StagingBoard::Create(options));
  loss_ = std::move(loss);
  DaemonWelcome welcome = {.session = std::make_unique<Connection>(*this),
                           .decision = decision,
                           .catalog_fd = {},
                           .board_fd = UniqueFd(fcntl(board_->fd(), F_DUPFD_CLOEXEC, 0)),
                           .generation = kGeneration};
  ASSIGN_OR_RETURN(welcome.catalog_fd, MakeSealedMemfd("catalog", catalog));
  return welcome;
}

void DaemonFake::SetAll(ExtentState state) {
  for (uint64_t i = 0; i < board_->extent_count(); ++i) board_->SetState(i, state);
}

DaemonOpenRequest DaemonFake::request() const {
  absl::MutexLock lock(&mutex_);
  return request_;
}

std::vector<DemandedBytes> DaemonFake::demand() const {
  absl::MutexLock lock(&mutex_);
  return demand_;
}

std::vector<uint64_t> DaemonFake::urgent() const {
  absl::MutexLock lock(&mutex_);
  return urgent_;
}

std::vector<uint32_t> DaemonFake::consumed() const {
  absl::MutexLock lock(&mutex_);
  return consumed_;
}

}  // namespace forestage
