// Files of others, opened for reading.
#pragma once

#include <fcntl.h>

#include <string>

#include "common/unique_fd.h"

namespace forestage {

// Opens `path` so that nothing that has come in its place can hang or take over the caller: a FIFO
// does not block, a terminal does not become the process's own, and a signal only delays it. Not
// valid on failure: then errno says why.
UniqueFd OpenForReading(const std::string& path);

// The same by flags of open(2); O_CLOEXEC is always set.
UniqueFd OpenWithFlags(const std::string& path, int flags);

}  // namespace forestage
