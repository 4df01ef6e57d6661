// forestage demo: a checkpoint to try things with, without a download.
#pragma once

#include <string>

#include "client/cli/demo_architecture.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/termination_signals.h"

namespace forestage {

struct DemoOptions {
  std::string directory;
  uint64_t size_bytes = uint64_t{1} << 30;
  uint64_t shard_count = 4;
  DemoArchitecture architecture = DemoArchitecture::kLlama;
  // Write into a directory that is not empty.
  bool force = false;
};

// Writes everything under temporary names and renames at the end, so that what does not get ready
// never looks as if it were. Interruptible.
ExitCode RunDemo(const GlobalOptions& global, const DemoOptions& options,
                 const TerminationSignals& signals);

}  // namespace forestage
