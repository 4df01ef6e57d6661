#include "daemon/staging/striped_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/memfd.h"
#include "common/status_macros.h"
#include "daemon/limits.h"

namespace forestage {

absl::StatusOr<std::unique_ptr<StripedCheckpoint>> StripedCheckpoint::Create(Options options) {
  ASSIGN_OR_RETURN(UniqueFd catalog_fd,
                   MakeSealedMemfd("forestage-catalog", options.catalog_bytes));
  ASSIGN_OR_RETURN(FileMapping mapping,
                   FileMapping::MapReadOnly(catalog_fd.get(), options.catalog_bytes.size()));
  ASSIGN_OR_RETURN(const CatalogView catalog, CatalogView::FromBytes(mapping.bytes()));
  // All readers before the first lane, whose end is waited for.
  std::vector<std::unique_ptr<StorageReader>> readers;
  for (size_t i = 0; i < options.lane_count; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<StorageReader> reader, options.make_reader());
    readers.push_back(std::move(reader));
  }
  std::unique_ptr<StripedCheckpoint> checkpoint(new StripedCheckpoint(
      std::move(options.path_label), std::move(catalog_fd), std::move(mapping), catalog,
      std::move(options.headers), std::move(options.stager)));
  for (size_t i = 0; i < readers.size(); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane,
                     Lane::Start(checkpoint->stager_, i, std::move(readers[i])));
    checkpoint->lanes_.push_back(std::move(lane));
  }
  return checkpoint;
}

StripedCheckpoint::StripedCheckpoint(std::string path_label, UniqueFd catalog_fd,
                                     FileMapping catalog_mapping, CatalogView catalog,
                                     std::shared_ptr<const HeaderQuota::Hold> headers,
                                     std::shared_ptr<Stager> stager)
    : path_label_(std::move(path_label)),
      catalog_fd_(std::move(catalog_fd)),
      catalog_mapping_(std::move(catalog_mapping)),
      catalog_(catalog),
      headers_(std::move(headers)),
      stager_(std::move(stager)) {}

StripedCheckpoint::~StripedCheckpoint() {
  stager_->Stop();
  const absl::Time deadline = absl::Now() + kLaneStopTimeout;
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->JoinOrLeave(deadline);
  // A lane that was left behind must not report to who may be gone when its device answers.
  stager_->AbandonObserver();
}

absl::StatusOr<Stager::ShardRange> StripedCheckpoint::BytesOf(const DemandItem& item) const {
  if (item.tensor_index >= catalog_.tensor_count()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor index ", item.tensor_index,
                                                   " in a demand; the catalog has ",
                                                   catalog_.tensor_count(), " tensors"));
  }
  const TensorEntryView tensor = catalog_.tensor(item.tensor_index);
  const uint64_t bytes = tensor.end - tensor.begin;
  const bool whole = item.begin == 0 && item.end == 0;
  if (!whole && (item.begin > item.end || item.end > bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("bytes [", item.begin, ", ", item.end, ") of ",
                                                   tensor.name, " in a demand; it has ", bytes));
  }
  return Stager::ShardRange{.shard_index = tensor.shard_index,
                            .begin = tensor.begin + item.begin,
                            .end = whole ? tensor.end : tensor.begin + item.end};
}

absl::Status StripedCheckpoint::AddDemand(SessionId session, absl::Span<const DemandItem> items) {
  std::vector<Stager::ShardRange> ranges;
  for (const DemandItem& item : items) {
    ASSIGN_OR_RETURN(const Stager::ShardRange range, BytesOf(item));
    if (range.begin == range.end) continue;
    // Neighbours in the file are mostly neighbours in a demand.
    if (!ranges.empty() && range.shard_index == ranges.back().shard_index &&
        range.begin >= ranges.back().begin && range.begin <= ranges.back().end) {
      ranges.back().end = std::max(ranges.back().end, range.end);
    } else {
      ranges.push_back(range);
    }
  }
  stager_->AddDemand(session, ranges);
  return absl::OkStatus();
}

void StripedCheckpoint::AddDemandForEverything(SessionId session) {
  stager_->AddDemandForEverything(session);
}

void StripedCheckpoint::AddUrgent(SessionId session, absl::Span<const uint64_t> extent_indexes) {
  std::vector<uint64_t> known;
  for (const uint64_t index : extent_indexes) {
    if (index < extents().extent_count()) known.push_back(index);
  }
  stager_->AddUrgent(session, known);
}

}  // namespace forestage
