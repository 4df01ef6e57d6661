// The files of a checkpoint as this process sees them: selected, opened, mapped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "checkpoint/catalog_assembly.h"
#include "checkpoint/file_selection.h"
#include "common/file_mapping.h"
#include "common/unique_fd.h"

namespace forestage {

// Most threads that open files or read headers at once: enough to hide the latency of a network
// file system, few enough not to stall its server.
inline constexpr size_t kHeaderThreadsMax = 16;

// One shard, open read-only. `fd` is never written to and its file position is never used: other
// processes may have the same open file.
struct OpenShard {
  std::string name;
  std::string path;
  UniqueFd fd;
  // `fd` only names the file (O_PATH): nothing can be read through it, and nothing is mapped.
  bool named_only = false;
  // When it was opened.
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  // All of the file; `mapped` is false where the file system refuses mappings, or the process may
  // have no more address space. Such a shard is read with pread.
  FileMapping mapping;
  bool mapped = false;
  // Why it is not mapped.
  absl::Status mapping_error;
};

// Reads and checks its header. Errors as ReadHeader; INVALID_ARGUMENT too when its length is not
// what it was when it was opened. Blocks on storage. Requires: !shard.named_only.
ShardReading ReadOpenShard(const OpenShard& shard);

// Thread-safe once everything is open, and immutable from then on. Descriptors and mappings live as
// long as this object.
class CheckpointFiles {
 public:
  // Selects the files of `directory` (see SelectFiles for its errors) and opens all of them. Blocks
  // on the file system. Every file that cannot be opened, or is not a regular file
  // (INVALID_ARGUMENT), is in the one error, whose code is that of the first; with them, what is
  // wrong with the headers of the others and with the names in them. RESOURCE_EXHAUSTED:
  // more shards than the process may open files, although its soft limit was raised towards the
  // hard one.
  //
  // Files of file systems of the type `named_file_system` (statfs), on which an open may drop what
  // the page cache holds of a file, are only named until OpenRest(), which opens nothing.
  static absl::StatusOr<std::shared_ptr<CheckpointFiles>> Open(
      const std::string& directory, const SelectionOptions& options,
      std::optional<uint32_t> named_file_system = std::nullopt);

  // Some files are only named.
  bool incomplete() const;
  // Opens what is only named. `lent` is empty, or has for each shard a descriptor that somebody
  // else has opened, or none; one that is not of the named file, or not open for reading only, is
  // not used. Errors as Open(); may be called again then.
  absl::Status OpenRest(std::vector<UniqueFd> lent);

  const FileSelection& selection() const { return selection_; }
  // In natural order, as selected.
  absl::Span<const OpenShard> shards() const { return shards_; }
  std::vector<uint64_t> shard_bytes() const;
  // Of the first shard that could not be mapped, so that slices of it are copies.
  absl::Status mapping_error() const;

 private:
  explicit CheckpointFiles(FileSelection selection);
  // Calls `open` for each shard, again with a raised limit where descriptors ran out.
  absl::Status ForEachShard(const std::function<absl::Status(size_t)>& open);

  const FileSelection selection_;
  std::vector<OpenShard> shards_;
};

}  // namespace forestage
