// Options that every command of `forestage` takes.
#pragma once

#include <string>

namespace forestage {

struct GlobalOptions {
  // Of the daemon; empty until ResolveSocketPath.
  std::string socket_path;
  bool no_daemon = false;
  // Facts and errors as one JSON document on standard output, and no progress.
  bool json = false;
};

}  // namespace forestage
