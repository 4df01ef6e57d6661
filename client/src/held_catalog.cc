#include "client/src/held_catalog.h"

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "checkpoint/catalog_assembly.h"
#include "checkpoint/name_resolution.h"
#include "common/errno_status.h"
#include "common/file_mapping.h"
#include "common/memfd.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

absl::Status CheckSameFiles(const CatalogView& catalog, const CheckpointFiles& files) {
  if (catalog.shard_count() != files.shards().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", catalog.shard_count(), " shards, this rank sees ", files.shards().size()));
  }
  for (size_t i = 0; i < catalog.shard_count(); ++i) {
    const ShardEntryView theirs = catalog.shard(i);
    const OpenShard& ours = files.shards()[i];
    if (theirs.name != ours.name || theirs.bytes != ours.bytes ||
        theirs.mtime_ns != ours.mtime_ns) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", i, " is ", LineText(theirs.name), " of ", theirs.bytes,
                       " bytes, this rank sees ", LineText(ours.name), " of ", ours.bytes,
                       theirs.mtime_ns != ours.mtime_ns ? " modified at another time" : ""));
    }
  }
  // CatalogView has checked that each tensor lies in its shard and is as large as its shape says.
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeldCatalog> ReadNativeCatalog(const CheckpointFiles& files) {
  std::vector<ShardReading> readings(files.shards().size());
  ParallelFor(readings.size(), kHeaderThreadsMax,
              [&](size_t index) { readings[index] = ReadOpenShard(files.shards()[index]); });
  ASSIGN_OR_RETURN(AssembledCatalog catalog,
                   AssembleCatalog(files.selection(), std::move(readings)));
  return HeldCatalog{
      .owner = std::move(catalog.bytes), .view = catalog.view, .not_served_of_daemon = {}};
}

absl::StatusOr<HeldCatalog> MapDaemonCatalog(const UniqueFd& fd, const CheckpointFiles& files) {
  RETURN_IF_ERROR(CheckSealed(fd.get(), /*unwritable=*/true));
  struct stat stat_buffer = {};
  if (fstat(fd.get(), &stat_buffer) != 0) return ErrnoStatus(errno, "fstat of the catalog");
  ASSIGN_OR_RETURN(FileMapping mapping,
                   FileMapping::MapReadOnly(fd.get(), static_cast<uint64_t>(stat_buffer.st_size)));
  auto owner = std::make_shared<const FileMapping>(std::move(mapping));
  ASSIGN_OR_RETURN(const CatalogView view, CatalogView::FromBytes(owner->bytes()));
  RETURN_IF_ERROR(CheckSameFiles(view, files));
  ASSIGN_OR_RETURN(std::vector<uint32_t> ignored, ResolveNames(files.selection(), view));
  if (ignored.empty()) {
    return HeldCatalog{.owner = std::move(owner), .view = view, .not_served_of_daemon = {}};
  }
  // The daemon does not know the index: its catalog has all that the shards hold.
  auto served = std::make_shared<const std::vector<std::byte>>(BuildCatalogWithout(view, ignored));
  ASSIGN_OR_RETURN(const CatalogView served_view, CatalogView::FromBytes(*served));
  return HeldCatalog{
      .owner = std::move(served), .view = served_view, .not_served_of_daemon = std::move(ignored)};
}

uint32_t HeldCatalog::IndexAtDaemon(size_t tensor_index) const {
  auto index = static_cast<uint32_t>(tensor_index);
  for (const uint32_t not_served : not_served_of_daemon) {
    if (not_served > index) break;
    ++index;
  }
  return index;
}

}  // namespace forestage
