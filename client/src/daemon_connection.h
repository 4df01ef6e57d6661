// The connection to forestaged over its two sockets. The only file pair of the client that knows
// gRPC; this header does not.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/src/daemon_loss.h"
#include "client/src/daemon_session.h"

namespace forestage {

// A DaemonConnector. Every error's message is one line that names the socket and what to do.
absl::StatusOr<DaemonWelcome> OpenDaemonConnection(const DaemonOpenRequest& request,
                                                   std::shared_ptr<DaemonLoss> loss);

}  // namespace forestage
