// Mappings of files of the source, kept from open to open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <sys/stat.h>

#include "common/file_mapping.h"

namespace forestage {

// Thread-safe.
class SourceMappings {
 public:
  // Of the open file with this number, as long as it is now. nullptr: it cannot be mapped.
  std::shared_ptr<const FileMapping> Get(uint64_t number, int fd) ABSL_LOCKS_EXCLUDED(mutex_) {
    struct stat attributes = {};
    if (fstat(fd, &attributes) != 0) return nullptr;
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const FileMapping>& kept = mappings_[number];
    const auto bytes = static_cast<uint64_t>(attributes.st_size);
    if (kept != nullptr && kept->bytes().size() == bytes) return kept;
    absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(fd, bytes);
    if (!mapping.ok()) return kept = nullptr;
    mapping->FaultInHugePages();
    return kept = std::make_shared<const FileMapping>(*std::move(mapping));
  }

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const FileMapping>> mappings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
