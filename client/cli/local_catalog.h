// A checkpoint's catalog, made from the files by this process alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "checkpoint/catalog.h"
#include "checkpoint/file_selection.h"

namespace forestage {

// Immutable and thread-safe.
class LocalCatalog {
 public:
  // Selects the files, reads every header and checks them against the index. Blocks on the file
  // system; reads headers only and asks the kernel for no read-ahead, so that data stays as cold as
  // it was. Errors are those of SelectFiles, ReadHeader, BuildCatalog and CheckIndexAgainstCatalog,
  // of all damaged shards at once.
  static absl::StatusOr<std::unique_ptr<const LocalCatalog>> Read(const std::string& directory);

  const FileSelection& selection() const { return selection_; }
  const CatalogView& view() const { return *view_; }

 private:
  explicit LocalCatalog(FileSelection selection) : selection_(std::move(selection)) {}

  FileSelection selection_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<const CatalogView> view_;  // of bytes_
};

}  // namespace forestage
