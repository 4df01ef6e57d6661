// The inodes of the source directory that somebody has looked up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <sys/stat.h>

#include "common/unique_fd.h"

namespace forestage {

// Thread-safe. Keeps every inode open until the end: a numbered file never changes its meaning.
class SourceTree {
 public:
  struct Node {
    uint64_t id = 0;
    // Relative to the source, as it was first looked up; empty for the source itself.
    std::string path;
    UniqueFd fd;  // O_PATH
  };

  // Requires that `source` is a directory; its node has the id 1.
  static absl::StatusOr<std::unique_ptr<SourceTree>> Open(const std::string& source);

  // Requires: `id` came from here. Valid as long as this object.
  const Node& node(uint64_t id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // 0, or an errno. Fills in the id and what stat says.
  int Lookup(uint64_t parent, const char* name, uint64_t* id, struct stat* attributes)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SourceTree() = default;

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Node>> nodes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<dev_t, ino_t>, uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
