// Whom a process believes to be the daemon, by who listens on its sockets.
//
// What the path of a socket leads to is no proof: whoever may write to one of the directories on it
// can put a socket of his own there. The kernel says who called listen() on a connected socket
// (SO_PEERCRED), so this is asked before the first byte is sent. docs/security.md has the rest.
#pragma once

#include <string>

#include "absl/status/status.h"
#include <sys/types.h>

namespace forestage {

// One of a daemon's sockets, as a client is told of it.
struct DaemonSocket {
  std::string path = {};
  // Who may listen there beside root and this process's own user: a user's name or number. Empty:
  // nobody else.
  std::string daemon_user = {};
};

// Who listens, and who asks.
struct Listener {
  uid_t uid = 0;
  // Of this process; the effective one.
  uid_t own_uid = 0;
  // False in a user namespace in which some users have no number: all of them look like 65534.
  bool all_users_have_numbers = true;
};

// UNAUTHENTICATED unless root listens, or `own_uid`, or `socket.daemon_user`. The message is
// complete: it names the path, the user, and what to do. May block on the system's user database,
// where the answer is not clear without.
absl::Status CheckTrusted(const DaemonSocket& socket, const Listener& listener);

// The same for a connected socket.
absl::Status CheckListener(const DaemonSocket& socket, int socket_fd);

}  // namespace forestage
