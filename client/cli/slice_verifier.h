// Compares loaded bytes with this process's own read of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/local_catalog.h"

#include "common/file_change.h"
#include "common/unique_fd.h"
#include "forestage/catalog.h"
#include "forestage/slice.h"

namespace forestage {

// Knows the files from its own open, its own read of the headers and pread: nothing of a session
// and nothing of a daemon. Not thread-safe.
class SliceVerifier {
 public:
  explicit SliceVerifier(std::shared_ptr<const LocalCatalog> catalog);

  // nullopt when `bytes` are the file's bytes of rows `rows` of this tensor (empty: of all of it),
  // else what differs. Blocks on the file system; memory is bounded whatever the size. Errors are
  // those of open and pread; FAILED_PRECONDITION: something differs, and the file was changed since
  // this object was made, so that nobody knows who is wrong.
  absl::StatusOr<std::optional<std::string>> FindDifference(const TensorInfo& tensor,
                                                            absl::Span<const Range> rows,
                                                            absl::Span<const std::byte> bytes);

 private:
  absl::StatusOr<std::optional<std::string>> Compare(const TensorInfo& tensor,
                                                     absl::Span<const Range> rows,
                                                     absl::Span<const std::byte> bytes);
  absl::Status OpenShard(size_t shard_index);
  absl::Status CheckUnchanged(size_t shard_index) const;

  const std::shared_ptr<const LocalCatalog> catalog_;
  // How the shards looked at the beginning; nullopt where that could not be seen.
  std::vector<std::optional<FileStamp>> stamps_;
  std::vector<std::byte> buffer_;
  // The shard that was looked at last; slices come shard by shard.
  std::optional<size_t> open_shard_;
  UniqueFd file_;
};

}  // namespace forestage
