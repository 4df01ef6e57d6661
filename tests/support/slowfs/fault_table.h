// Which reads fail, and how.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

#include "tests/support/slowfs/file_range.h"

namespace forestage {

enum class FaultKind {
  // The errno of that name.
  kEio,
  kEstale,
  kEnomem,
  kEintr,
  kEagain,
  // Half of the bytes that were asked for.
  kShort,
  // As if the file ended where the fault begins.
  kEof,
};
// By the names of the control protocol: "eio", "estale", "enomem", "eintr", "eagain", "short",
// "eof".
std::optional<FaultKind> FaultKindByName(absl::string_view name);
// What such a read is answered with; 0 for kShort and kEof, which are no errors.
int ErrorNumberOf(FaultKind kind);

struct Fault {
  FileRange range;
  FaultKind kind = FaultKind::kEio;
  // How many reads it hits before it heals.
  uint64_t remaining = UINT64_MAX;
};

// Thread-safe.
class FaultTable {
 public:
  void Add(Fault fault) ABSL_LOCKS_EXCLUDED(mutex_);
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

  // The first fault that this read hits; uses up one of its hits.
  std::optional<Fault> Hit(absl::string_view path, uint64_t offset, uint64_t size, int reader)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
