// The checkpoints that the daemon model loads: small real files, the same at the begin of each run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/temporary_directory_for_test.h"
#include "common/unique_fd.h"

namespace forestage {

class ModelFiles {
 public:
  struct Shard {
    std::string name;
    uint64_t bytes = 0;
    // Of the open file.
    int64_t mtime_ns = 0;
    UniqueFd fd;
  };
  static constexpr size_t kCheckpoints = 3;
  // Its headers are not sound.
  static constexpr size_t kDamaged = 2;
  static constexpr uint64_t kExtentBytes = 16 * 1024;

  ModelFiles();
  // As if they had never been changed.
  void Restore();
  // Their mtime moves on.
  void Change(size_t checkpoint, size_t shard);
  // As a rank does it.
  std::vector<Shard> Open(size_t checkpoint) const;
  size_t ShardCount(size_t checkpoint) const { return names_[checkpoint].size(); }
  const std::string& Name(size_t checkpoint, size_t shard) const {
    return names_[checkpoint][shard];
  }

 private:
  std::string Path(size_t checkpoint, size_t shard) const;
  void SetTime(size_t checkpoint, size_t shard, int64_t seconds) const;

  const TemporaryDirectoryForTest directory_;
  std::vector<std::vector<std::string>> names_;
  int64_t changes_ = 0;
};

}  // namespace forestage
