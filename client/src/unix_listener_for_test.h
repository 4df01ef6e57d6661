// A Unix socket on which a test listens.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "common/unique_fd.h"

namespace forestage {

// Bound and listening, in blocking mode. Type: SOCK_STREAM or SOCK_SEQPACKET.
UniqueFd ListenForTest(const std::string& path, int type);
// The next connection.
UniqueFd AcceptForTest(const UniqueFd& listener);
// Writes all of it.
void WriteForTest(const UniqueFd& socket, absl::string_view bytes);

}  // namespace forestage
