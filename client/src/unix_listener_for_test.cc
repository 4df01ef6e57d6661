#include "client/src/unix_listener_for_test.h"

#include <unistd.h>

#include <cstring>

#include <sys/socket.h>
#include <sys/un.h>

#include "common/check.h"

namespace forestage {

UniqueFd ListenForTest(const std::string& path, int type) {
  UniqueFd listener(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  CHECK(listener.valid());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  CHECK(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  CHECK(listen(listener.get(), 16) == 0);
  return listener;
}

UniqueFd AcceptForTest(const UniqueFd& listener) {
  UniqueFd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(connection.valid());
  return connection;
}

void WriteForTest(const UniqueFd& socket, absl::string_view bytes) {
  CHECK(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(bytes.size()));
}

}  // namespace forestage
