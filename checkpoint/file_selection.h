// Which files of a directory are the checkpoint, and which are ignored and why.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

enum class CheckpointLayout {
  // Files without "consolidated" in the name; the other layout when there are none.
  kSharded,
  // Files with "consolidated" in the name; the other layout when there are none.
  kConsolidated,
};

struct SelectionOptions {
  // Only when a directory without an index holds both layouts.
  CheckpointLayout preferred_layout = CheckpointLayout::kSharded;
};

struct SelectedShard {
  // File name in the directory, as listed (siblings resolve from the named directory).
  std::string name;
  // directory + "/" + name; may be a symbolic link, which open() follows with the caller's rights.
  std::string path;
};

struct IgnoredFile {
  std::string name;
  std::string reason;
};

// The weight_map of an index. Copies share the text that the names lie in.
struct WeightIndex {
  struct Entry {
    absl::string_view tensor;
    // Index into `shards`.
    uint32_t shard = 0;
  };
  // In the order of the text. A name may be there twice until ResolveNames has passed.
  std::vector<Entry> entries = {};
  // In the order of their first entries, each once.
  std::vector<std::string> shards = {};
  // What the names of tensors lie in.
  std::shared_ptr<const void> owner = nullptr;
};

struct FileSelection {
  std::string directory;
  // In natural order (model-2 before model-10). Never empty.
  std::vector<SelectedShard> shards;
  // Weight-like files that are not served: by name.
  std::vector<IgnoredFile> ignored;
  // Name of the index file that decided; empty without one.
  std::string index_name;
  // Empty without an index.
  WeightIndex index;
};

// Looks at the top directory only and opens nothing but an index file, unless it refuses the
// directory: then it looks into the files, to say what they are and what is wrong with the shards
// that are there. Blocks on the file system. Every error lists all offenders:
//   NOT_FOUND            no such directory; no weights in it; shards that the index names are
//                        missing; a link whose target is missing (both are named)
//   FAILED_PRECONDITION  gaps in -000NN-of-000MM without an index; only weights of a kind that is
//                        not served yet, by content where that is known (says what to do)
//   INVALID_ARGUMENT     the path is not a directory; an index that is not valid
//   PERMISSION_DENIED    as the system said
absl::StatusOr<FileSelection> SelectFiles(const std::string& directory,
                                          const SelectionOptions& options = {});

// Orders names as people count: digits by value, everything else by byte.
bool NaturalLess(absl::string_view a, absl::string_view b);

}  // namespace forestage
