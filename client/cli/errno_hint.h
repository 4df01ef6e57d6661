// What to do about errors of the system, for people.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include <sys/types.h>

namespace forestage {

// For each kind of error that `message` names as ErrnoStatus does, "... (EIO)", and that has an
// advice: one line, "EIO: ...", in the order of a table, however often it is named. Also for files
// that end early. `uid` is the user who met the errors. None of messages about the daemon's
// sockets, which say themselves what to do.
std::vector<std::string> ErrnoHints(absl::string_view message, uid_t uid);

}  // namespace forestage
