// Options that every command of `forestage` takes.
#pragma once

#include <string>

namespace forestage {

struct GlobalOptions {
  // Of the daemon; empty until ResolveSocketPaths.
  std::string socket_path;
  // Of its administrators' socket; empty until ResolveSocketPaths.
  std::string admin_socket_path;
  // As in DaemonSocket; empty until ResolveDaemonUser, and where nobody is named.
  std::string daemon_user;
  bool no_daemon = false;
  // Facts and errors as one JSON document on standard output, and no progress.
  bool json = false;
};

}  // namespace forestage
