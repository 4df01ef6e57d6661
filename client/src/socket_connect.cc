#include "client/src/socket_connect.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/socket.h>
#include <sys/un.h>

#include "common/errno_status.h"

namespace forestage {
namespace {

// There is nothing to wait on for a socket that does not exist yet.
constexpr absl::Duration kRetryPeriod = absl::Milliseconds(20);

// The errno of one attempt, 0 when connected.
int TryConnect(const sockaddr_un& address, int type, UniqueFd& socket_fd) {
  socket_fd.Reset(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd.valid()) return errno;
  // Never in progress on a Unix socket: a full backlog is EAGAIN.
  while (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
         0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectUnixSocket(const std::string& path, int type, absl::Time deadline) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a socket's path has at most ",
                                                   sizeof(address.sun_path) - 1,
                                                   " bytes, this one has ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  while (true) {
    UniqueFd socket_fd;
    const int error_number = TryConnect(address, type, socket_fd);
    if (error_number == 0) return socket_fd;
    const bool may_pass =
        error_number == ENOENT || error_number == ECONNREFUSED || error_number == EAGAIN;
    const absl::Duration left = deadline - absl::Now();
    if (!may_pass || left <= absl::ZeroDuration()) return ErrnoStatus(error_number, path);
    absl::SleepFor(std::min(left, kRetryPeriod));
  }
}

absl::Status CheckServed(const std::string& path, int socket_fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  // Unknown: the daemon decides.
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return absl::OkStatus();
  return CheckServed(path, peer.uid, geteuid());
}

absl::Status CheckServed(const std::string& path, uid_t daemon_uid, uid_t own_uid) {
  if (own_uid == 0 || own_uid == daemon_uid) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "the daemon at ", path, " closed the connection: it serves only root and its ",
      "own user there (uid ", daemon_uid, ", this is uid ", own_uid, "; see its log)"));
}

}  // namespace forestage
