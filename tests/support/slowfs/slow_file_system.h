// The file system: passes a directory through, read-only, as slowly and as faultily as it is told.
// Its control protocol is described in README.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "tests/support/slowfs/counters.h"
#include "tests/support/slowfs/fault_table.h"
#include "tests/support/slowfs/open_files.h"
#include "tests/support/slowfs/read_scheduler.h"
#include "tests/support/slowfs/source_mappings.h"
#include "tests/support/slowfs/source_tree.h"

struct fuse_session;

namespace forestage {

// FUSE requests come on threads of libfuse, answers go out on workers of the scheduler, control
// commands on a thread of their own: thread-safe but for Mount and Run.
class SlowFileSystem {
 public:
  struct Options {
    std::string source;
    std::string mount;
    // Largest read request in bytes; 0: the kernel's own limit.
    uint32_t request_bytes_max = 0;
    double attribute_timeout_seconds = 1;
    // Each close is a request that the closer waits for.
    bool flushes = false;
  };
  static absl::StatusOr<std::unique_ptr<SlowFileSystem>> Create(const Options& options);
  ~SlowFileSystem();

  absl::Status Mount();
  // Serves until SIGTERM, SIGINT or an unmount, then answers what waits and unmounts.
  absl::Status Run();

  // One line of the control protocol; the answer is one line without its end.
  std::string Command(absl::string_view line);

 private:
  friend struct FuseOperations;
  explicit SlowFileSystem(const Options& options);

  absl::StatusOr<std::string> Execute(const std::vector<std::string>& words);
  absl::Status Set(const std::string& name, const std::string& value);
  absl::Status SetReadAhead(uint64_t kibibytes) const;
  // On a thread of libfuse, until the flag is off or nobody is to be served any more.
  void WaitWhile(const std::atomic<bool>& held);

  const Options options_;
  std::unique_ptr<SourceTree> tree_;
  OpenFiles open_files_;
  SourceMappings mappings_;
  FaultTable faults_;
  Counters counters_;
  ReadScheduler scheduler_;
  std::atomic<bool> keep_cache_{true};
  std::atomic<bool> direct_io_{false};
  // For which a thread of libfuse sleeps, of which there are enough.
  std::atomic<double> attribute_latency_ms_{0};
  // The same holds for these.
  std::atomic<bool> hold_opens_{false};
  std::atomic<bool> hold_stats_{false};
  std::atomic<bool> hold_closes_{false};
  std::atomic<size_t> held_calls_{0};
  fuse_session* session_ = nullptr;
};

}  // namespace forestage
