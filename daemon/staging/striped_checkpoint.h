// The StagedCheckpoint that lanes read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "checkpoint/catalog.h"
#include "checkpoint/extent.h"
#include "common/file_mapping.h"
#include "common/unique_fd.h"
#include "daemon/staging/header_quota.h"
#include "daemon/staging/lane.h"
#include "daemon/staging/staged_checkpoint.h"
#include "daemon/staging/stager.h"
#include "daemon/storage/reader_selection.h"

namespace forestage {

// See StagedCheckpoint. The destructor stops the lanes and waits for them, at most
// kLaneStopTimeout: lanes whose device does not answer are left behind with the open files.
class StripedCheckpoint : public StagedCheckpoint {
 public:
  struct Options {
    std::string path_label;
    // Of BuildCatalog, over the same shards as the stager's files.
    std::vector<std::byte> catalog_bytes;
    // Of the headers that the catalog was made of; given back when the checkpoint goes. May be
    // null.
    std::shared_ptr<const HeaderQuota::Hold> headers;
    std::shared_ptr<Stager> stager;
    size_t lane_count = 1;
    StorageReaderFactory make_reader;
  };
  // Seals the catalog and starts the lanes. Errors of the reader factory and of memfds.
  static absl::StatusOr<std::unique_ptr<StripedCheckpoint>> Create(Options options);
  ~StripedCheckpoint() override;

  const std::string& path_label() const override { return path_label_; }
  const CatalogView& catalog() const override { return catalog_; }
  const ExtentMap& extents() const override { return stager_->extents(); }
  int catalog_fd() const override { return catalog_fd_.get(); }
  int board_fd() const override { return stager_->board()->fd(); }

  absl::Status AddDemand(SessionId session, absl::Span<const DemandItem> items) override;
  void AddDemandForEverything(SessionId session) override;
  void AddUrgent(SessionId session, absl::Span<const uint64_t> extent_indexes) override;
  void RemoveSession(SessionId session) override { stager_->RemoveSession(session); }
  void HoldReadAhead(SessionId session) override { stager_->HoldReadAhead(session); }
  void ReleaseReadAhead(SessionId session) override { stager_->ReleaseReadAhead(session); }

  uint64_t CacheableBytes() const override { return stager_->CacheableBytes(); }
  uint64_t CachedBytes() const override { return stager_->CachedBytes(); }
  StagingProgress progress() const override { return stager_->progress(); }
  std::vector<std::string> read_errors() const override { return stager_->read_errors(); }
  void Stop() override { stager_->Stop(); }

 private:
  StripedCheckpoint(std::string path_label, UniqueFd catalog_fd, FileMapping catalog_mapping,
                    CatalogView catalog, std::shared_ptr<const HeaderQuota::Hold> headers,
                    std::shared_ptr<Stager> stager);

  // Bytes of one item; INVALID_ARGUMENT when it is outside the catalog.
  absl::StatusOr<Stager::ShardRange> BytesOf(const DemandItem& item) const;

  // Constant after construction.
  const std::string path_label_;
  const UniqueFd catalog_fd_;
  const FileMapping catalog_mapping_;
  const CatalogView catalog_;
  const std::shared_ptr<const HeaderQuota::Hold> headers_;
  const std::shared_ptr<Stager> stager_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace forestage
