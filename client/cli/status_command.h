// forestage status: what the daemon holds now.
#pragma once

#include <string>

#include "client/cli/daemon_stub.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"

namespace forestage {

ExitCode RunStatus(const GlobalOptions& global);

// For people.
std::string StatusText(const DaemonStatus& status);

}  // namespace forestage
