// forestage load: N rank processes load a checkpoint through the client library.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/rank_options.h"
#include "client/cli/termination_signals.h"

namespace forestage {

// A node has fewer GPUs; more is a slip of the hand.
inline constexpr uint32_t kRanksMax = 256;

struct LoadOptions {
  std::string directory;
  uint32_t ranks = 1;
  Share share = Share::kAll;
  bool verify = false;
  bool own = false;
  bool together = false;
  // Where the digests go; empty for none.
  std::string digests_path;
  Policy policy = Policy::kAuto;
  Agreement agreement = Agreement::kEager;
  // Empty: a name of its own.
  std::string group_name;
};

// Uses no gRPC in this process: ranks are started from it.
ExitCode RunLoad(const GlobalOptions& global, const LoadOptions& options,
                 const TerminationSignals& signals);

}  // namespace forestage
