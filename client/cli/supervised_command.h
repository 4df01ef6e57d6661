// Runs a command in a process of its own, so that `forestage` ends when it is told to although the
// command waits for a file system that never answers: no signal ends such a process.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/termination_signals.h"

namespace forestage {

// Forks. In the child it runs `command` and returns its exit code. In the parent, which never asks
// storage for anything, it returns the child's, or ends as the child was ended by a signal. The
// parent passes signals on; `patience` after one the child ends by it wherever it is, and when the
// kernel does not let it go the parent says for which file it waits, and ends by the signal itself.
// It also tells of one call on a file that takes long. When the parent is killed, the child ends as
// by SIGTERM.
//
// Requires: no other thread runs.
ExitCode RunSupervised(const GlobalOptions& global, absl::Duration patience,
                       const std::function<ExitCode(TerminationSignals&)>& command);

}  // namespace forestage
