#include "client/src/socket_connect.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/errno_status.h"
#include "common/socket_path.h"
#include "common/status_macros.h"

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

absl::StatusOr<UniqueFd> ConnectUnixSocket(const DaemonSocket& daemon_socket, int type,
                                           absl::Time deadline) {
  const std::string& path = daemon_socket.path;
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
    if (error_number == 0) {
      RETURN_IF_ERROR(CheckListener(daemon_socket, socket_fd.get()));
      return socket_fd;
    }
    const bool may_pass =
        error_number == ENOENT || error_number == ECONNREFUSED || error_number == EAGAIN;
    const absl::Duration left = deadline - absl::Now();
    if (!may_pass || left <= absl::ZeroDuration()) return ErrnoStatus(error_number, path);
    absl::SleepFor(std::min(left, kRetryPeriod));
  }
}

absl::StatusOr<UniqueFd> ConnectToRanksSocket(const DaemonSocket& daemon_socket,
                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckRanksSocket(daemon_socket.path));
  absl::StatusOr<UniqueFd> socket = ConnectUnixSocket(daemon_socket, SOCK_STREAM, deadline);
  if (socket.ok() || absl::IsUnauthenticated(socket.status())) return socket;
  const absl::Status& status = socket.status();
  absl::string_view what = "cannot connect to ";
  absl::string_view fix = "give the socket of a daemon with --socket or FORESTAGE_SOCKET";
  if (absl::IsNotFound(status) || absl::IsUnavailable(status)) {
    what = "no daemon answers at ";
    fix = "start forestaged, or give its socket with --socket or FORESTAGE_SOCKET";
  } else if (absl::IsPermissionDenied(status)) {
    what = "may not connect to ";
    fix = "be in the group of this socket (the daemon's setting socket-group), or run as its user";
  } else if (absl::IsInvalidArgument(status)) {
    fix = "give forestaged a socket with a shorter path";
  }
  return absl::Status(status.code(), absl::StrCat(what, status.message(), ": ", fix));
}

absl::Status CheckRanksSocket(const std::string& path) {
  for (const auto& [ending, kind] : {std::pair(AdminSocketPath(""), "administrators"),
                                     std::pair(DescriptorSocketPath(""), "descriptors")}) {
    if (!absl::EndsWith(path, ending)) continue;
    const std::string meant = path.substr(0, path.size() - ending.size());
    struct stat attributes = {};
    if (stat(meant.c_str(), &attributes) != 0 || !S_ISSOCK(attributes.st_mode)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, " is the daemon's socket for ", kind,
                                                   ": give its socket for ranks, ", meant));
  }
  return absl::OkStatus();
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
