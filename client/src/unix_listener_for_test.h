// A Unix socket on which a test listens.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// Bound and listening, in blocking mode. Type: SOCK_STREAM or SOCK_SEQPACKET.
UniqueFd ListenForTest(const std::string& path, int type);
// The same as another user, whom the kernel names to those who connect. Everybody may connect.
// Requires: root.
UniqueFd ListenForTestAs(uid_t user, const std::string& path, int type);
// Connected to it.
UniqueFd ConnectForTest(const std::string& path, int type);
// What has come on the next connection until its other end was closed. Blocks until then.
std::string ReceiveAllForTest(const UniqueFd& listener);
// The next connection.
UniqueFd AcceptForTest(const UniqueFd& listener);
// Writes all of it.
void WriteForTest(const UniqueFd& socket, absl::string_view bytes);

}  // namespace forestage
