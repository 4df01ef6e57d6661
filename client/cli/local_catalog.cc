#include "client/cli/local_catalog.h"

#include <utility>

#include "checkpoint/shard_survey.h"
#include "common/status_macros.h"

namespace forestage {

absl::StatusOr<std::unique_ptr<const LocalCatalog>> LocalCatalog::Read(
    const std::string& directory) {
  ASSIGN_OR_RETURN(FileSelection selection, SelectFiles(directory));
  ASSIGN_OR_RETURN(AssembledCatalog catalog,
                   AssembleCatalog(selection, ReadShards(selection.shards)));
  return std::unique_ptr<const LocalCatalog>(
      new LocalCatalog(std::move(selection), std::move(catalog)));
}

}  // namespace forestage
