// Connecting to a Unix socket within a bounded time.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/listener_trust.h"
#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// Connects to `daemon_socket` (`type`: SOCK_STREAM or SOCK_SEQPACKET) and looks who listens there.
// The descriptor is non-blocking and close-on-exec; nothing was sent. While the socket is missing
// or nobody accepts, tries again until `deadline`, and at least once. NOT_FOUND: no such socket;
// UNAVAILABLE: nobody listens, or the listener is too busy; PERMISSION_DENIED; INVALID_ARGUMENT:
// the path is longer than a socket's may be (107 bytes), or not a socket. Messages name the path,
// not what to do; but UNAUTHENTICATED as CheckListener, which does both.
absl::StatusOr<UniqueFd> ConnectUnixSocket(const DaemonSocket& daemon_socket, int type,
                                           absl::Time deadline);

// Connects to a daemon's socket for ranks, as ConnectUnixSocket does. Its errors, with messages
// that are complete and say what to do; before any attempt INVALID_ARGUMENT as CheckRanksSocket.
absl::StatusOr<UniqueFd> ConnectToRanksSocket(const DaemonSocket& daemon_socket,
                                              absl::Time deadline);

// INVALID_ARGUMENT when `path` is one of the two other sockets of a daemon, given by mistake: it
// has their ending, and without it there is a socket, which the message names. Looks at the file
// system only where the ending is so.
absl::Status CheckRanksSocket(const std::string& path);

// Whether a daemon that runs as the peer of `socket_fd`, its administrators' socket, serves this
// process: PERMISSION_DENIED when it serves only root and its own user, and this is neither. It
// closes such a connection without an answer, so nothing but this says why. The message names
// `path` and is complete.
absl::Status CheckServed(const std::string& path, int socket_fd);
// The same for two given users.
absl::Status CheckServed(const std::string& path, uid_t daemon_uid, uid_t own_uid);

}  // namespace forestage
