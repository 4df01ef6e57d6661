// What the kernel holds open at slowfs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/file_mapping.h"
#include "common/unique_fd.h"

namespace forestage {

// A file, or a directory as it was when it was opened.
struct OpenFile {
  // Relative to the source.
  std::string path;
  UniqueFd fd;
  // Of a file that can be mapped, as long as it was at the open.
  std::shared_ptr<const FileMapping> mapping;
  // Of a directory: names with inode numbers.
  std::vector<std::pair<std::string, uint64_t>> names;
};

// By handle. Thread-safe.
class OpenFiles {
 public:
  uint64_t Add(OpenFile file) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    files_[next_handle_] = std::make_shared<const OpenFile>(std::move(file));
    return next_handle_++;
  }
  // Requires: Add gave the handle out and Remove did not get it.
  std::shared_ptr<const OpenFile> Get(uint64_t handle) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return files_.at(handle);
  }
  void Remove(uint64_t handle) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    files_.erase(handle);
  }

 private:
  mutable absl::Mutex mutex_;
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::shared_ptr<const OpenFile>> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
