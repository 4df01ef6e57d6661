// forestage stage: brings a checkpoint into memory and holds it there.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/daemon_stub.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/output.h"
#include "client/cli/termination_signals.h"

#include "forestage/session.h"

namespace forestage {

struct StageOptions {
  std::string directory;
  // Leave when all is staged.
  bool once = false;
};

// A session of its own: what it holds stays staged until a signal.
ExitCode RunStage(const GlobalOptions& global, const StageOptions& options,
                  const TerminationSignals& signals);

// What the daemon could not read of the checkpoint on which this group has a session; none without.
std::vector<std::string> ReadErrorsOf(const DaemonStatus& status, absl::string_view group);

// How long `stage` took, in seconds.
struct StageTimes {
  // Until the session was open, headers read and their demand known.
  double open = 0;
  // Until this command heard that all was staged, which it asks for now and then.
  double total = 0;
};

// The document of `stage --json`.
Json StageJson(const StagingStatus& staging, const StageTimes& times);

}  // namespace forestage
