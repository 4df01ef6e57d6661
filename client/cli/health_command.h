// forestage health: is the daemon ready to serve?
#pragma once

#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"

namespace forestage {

// kOk only for SERVING.
ExitCode RunHealth(const GlobalOptions& global);

}  // namespace forestage
