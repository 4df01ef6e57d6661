#include "client/cli/local_catalog.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "checkpoint/safetensors_header.h"
#include "common/errno_status.h"
#include "common/error_list.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

absl::StatusOr<CatalogShard> ReadShard(const SelectedShard& shard) {
  const UniqueFd file(open(shard.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open ", shard.path));
  // Only a hint; a file system that does not know it reads a little more.
  (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
  struct stat attributes = {};
  if (fstat(file.get(), &attributes) != 0)
    return ErrnoStatus(errno, absl::StrCat("cannot look at ", shard.path));
  CatalogShard result;
  result.name = shard.name;
  result.mtime_ns = int64_t{attributes.st_mtim.tv_sec} * 1'000'000'000 + attributes.st_mtim.tv_nsec;
  ASSIGN_OR_RETURN(result.header, ReadHeader(file.get(), shard.name));
  return result;
}

// Headers of all shards, or one status that has every shard's message and the first one's code.
absl::StatusOr<std::vector<CatalogShard>> ReadShards(const FileSelection& selection) {
  std::vector<CatalogShard> shards;
  std::vector<absl::Status> errors;
  for (const SelectedShard& shard : selection.shards) {
    absl::StatusOr<CatalogShard> read = ReadShard(shard);
    if (read.ok()) {
      shards.push_back(*std::move(read));
      continue;
    }
    errors.push_back(read.status());
  }
  RETURN_IF_ERROR(JoinErrors(errors));
  return shards;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const LocalCatalog>> LocalCatalog::Read(
    const std::string& directory) {
  ASSIGN_OR_RETURN(FileSelection selection, SelectFiles(directory));
  auto catalog = std::unique_ptr<LocalCatalog>(new LocalCatalog(std::move(selection)));
  ASSIGN_OR_RETURN(const std::vector<CatalogShard> shards, ReadShards(catalog->selection_));
  ASSIGN_OR_RETURN(catalog->bytes_, BuildCatalog(shards));
  ASSIGN_OR_RETURN(CatalogView view, CatalogView::FromBytes(catalog->bytes_));
  RETURN_IF_ERROR(CheckIndexAgainstCatalog(catalog->selection_, view));
  catalog->view_ = std::make_unique<const CatalogView>(std::move(view));
  return catalog;
}

}  // namespace forestage
