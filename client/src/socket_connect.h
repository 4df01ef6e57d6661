// Connecting to a Unix socket within a bounded time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/unique_fd.h"

namespace forestage {

// Connects to the Unix socket at `path` (`type`: SOCK_STREAM or SOCK_SEQPACKET). The descriptor is
// non-blocking and close-on-exec. While the socket is missing or nobody accepts, tries again until
// `deadline`, and at least once. NOT_FOUND: no such socket; UNAVAILABLE: nobody listens, or the
// listener is too busy; PERMISSION_DENIED; INVALID_ARGUMENT: the path is longer than a socket's may
// be (107 bytes), or not a socket. Messages name the path, not what to do.
absl::StatusOr<UniqueFd> ConnectUnixSocket(const std::string& path, int type, absl::Time deadline);

}  // namespace forestage
