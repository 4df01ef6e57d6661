#include "tests/support/slowfs/control_socket.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "common/errno_status.h"

namespace forestage {
namespace {

constexpr size_t kLineBytesMax = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<ControlSocket>> ControlSocket::Listen(const std::string& path,
                                                                     Handler handler) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("too long for a Unix socket: ", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return ErrnoStatus(errno, "socket");
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), 16) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", path));
  }
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "eventfd");
  return std::unique_ptr<ControlSocket>(
      new ControlSocket(path, std::move(handler), std::move(listener), std::move(stop)));
}

ControlSocket::ControlSocket(std::string path, Handler handler, UniqueFd listener, UniqueFd stop)
    : path_(std::move(path)),
      handler_(std::move(handler)),
      listener_(std::move(listener)),
      stop_(std::move(stop)) {
  thread_ = std::thread([this] { Serve(); });
}

ControlSocket::~ControlSocket() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
  unlink(path_.c_str());
}

void ControlSocket::Serve() const {
  while (true) {
    pollfd events[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0 && errno != EINTR) return;
    if ((events[1].revents & POLLIN) != 0) return;
    if ((events[0].revents & POLLIN) == 0) continue;
    UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.valid()) Answer(connection);
  }
}

void ControlSocket::Answer(const UniqueFd& connection) const {
  const timeval patience = {1, 0};
  setsockopt(connection.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  std::string line;
  while (line.find('\n') == std::string::npos && line.size() < kLineBytesMax) {
    char buffer[512];
    const ssize_t count = recv(connection.get(), buffer, sizeof(buffer), 0);
    if (count <= 0) return;
    line.append(buffer, static_cast<size_t>(count));
  }
  std::string answer = handler_(line.substr(0, line.find('\n')));
  answer += '\n';
  size_t sent = 0;
  while (sent < answer.size()) {
    const ssize_t count =
        send(connection.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<size_t>(count);
  }
}

}  // namespace forestage
