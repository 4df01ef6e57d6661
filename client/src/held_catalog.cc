#include "client/src/held_catalog.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "checkpoint/safetensors_header.h"
#include "common/errno_status.h"
#include "common/error_list.h"
#include "common/file_mapping.h"
#include "common/memfd.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// With the names that are held twice by the shards that are sound.
absl::Status WithRepeatedNames(const absl::Status& damaged, std::vector<CatalogShard> shards) {
  shards.erase(std::remove_if(shards.begin(), shards.end(),
                              [](const CatalogShard& shard) { return shard.name.empty(); }),
               shards.end());
  const absl::Status repeated = BuildCatalog(shards).status();
  if (repeated.ok()) return damaged;
  return absl::Status(damaged.code(), absl::StrCat(damaged.message(), "\n", repeated.message()));
}

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
          absl::StrCat("shard ", i, " is ", theirs.name, " of ", theirs.bytes,
                       " bytes, this rank sees ", ours.name, " of ", ours.bytes,
                       theirs.mtime_ns != ours.mtime_ns ? " modified at another time" : ""));
    }
  }
  // CatalogView has checked that each tensor lies in its shard and is as large as its shape says.
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeldCatalog> ReadNativeCatalog(const CheckpointFiles& files) {
  const size_t count = files.shards().size();
  std::vector<CatalogShard> shards(count);
  std::vector<absl::Status> statuses(count);
  ParallelFor(count, kHeaderThreadsMax, [&](size_t index) {
    const OpenShard& shard = files.shards()[index];
    absl::StatusOr<SafetensorsHeader> header = ReadHeader(shard.fd.get(), shard.path);
    if (!header.ok()) {
      statuses[index] = header.status();
      return;
    }
    if (header->file_bytes != shard.bytes) {
      statuses[index] = absl::InvalidArgumentError(
          absl::StrCat(shard.path, ": changed from ", shard.bytes, " to ", header->file_bytes,
                       " bytes while it was opened"));
      return;
    }
    shards[index] = {.name = shard.name, .mtime_ns = shard.mtime_ns, .header = *std::move(header)};
  });
  const absl::Status damaged = JoinErrors(statuses);
  if (!damaged.ok()) return WithRepeatedNames(damaged, std::move(shards));
  ASSIGN_OR_RETURN(std::vector<std::byte> bytes, BuildCatalog(shards));
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  ASSIGN_OR_RETURN(const CatalogView view, CatalogView::FromBytes(*owner));
  RETURN_IF_ERROR(CheckIndexAgainstCatalog(files.selection(), view));
  return HeldCatalog{.owner = std::move(owner), .view = view};
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
  RETURN_IF_ERROR(CheckIndexAgainstCatalog(files.selection(), view));
  return HeldCatalog{.owner = std::move(owner), .view = view};
}

}  // namespace forestage
