// A checkpoint's catalog, made from the files by this process alone.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "checkpoint/catalog.h"
#include "checkpoint/catalog_assembly.h"
#include "checkpoint/file_selection.h"

namespace forestage {

// Immutable and thread-safe.
class LocalCatalog {
 public:
  // Selects the files, reads every header and checks them against the index. Blocks on the file
  // system; reads headers only and asks the kernel for no read-ahead, so that data stays as cold as
  // it was. Errors are those of SelectFiles and AssembleCatalog.
  static absl::StatusOr<std::unique_ptr<const LocalCatalog>> Read(const std::string& directory);

  const FileSelection& selection() const { return selection_; }
  const CatalogView& view() const { return catalog_.view; }
  // Tensors that are not served, since the index names another shard for their names.
  const std::vector<IgnoredCopy>& ignored_copies() const { return catalog_.ignored_copies; }

 private:
  LocalCatalog(FileSelection selection, AssembledCatalog catalog)
      : selection_(std::move(selection)), catalog_(std::move(catalog)) {}

  const FileSelection selection_;
  const AssembledCatalog catalog_;
};

}  // namespace forestage
