#include "client/src/unix_listener_for_test.h"

#include <unistd.h>

#include <cstring>
#include <thread>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "common/check.h"

namespace forestage {

namespace {

constexpr int kBacklog = 16;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd BindForTest(const std::string& path, int type) {
  UniqueFd bound(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  CHECK(bound.valid());
  const sockaddr_un address = AddressOf(path);
  CHECK(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return bound;
}

}  // namespace

UniqueFd ListenForTest(const std::string& path, int type) {
  UniqueFd listener = BindForTest(path, type);
  CHECK(listen(listener.get(), kBacklog) == 0);
  return listener;
}

UniqueFd ListenForTestAs(uid_t user, const std::string& path, int type) {
  UniqueFd listener = BindForTest(path, type);
  CHECK(chmod(path.c_str(), 0666) == 0);
  // In a thread of its own, which ends then: the kernel knows users of threads, and only the C
  // library changes that of all.
  std::thread other([&] {
    CHECK(syscall(SYS_setresuid, user, user, user) == 0);
    CHECK(listen(listener.get(), kBacklog) == 0);
  });
  other.join();
  // Else this process could not be looked at any more, by a leak checker for one.
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
  return listener;
}

UniqueFd ConnectForTest(const std::string& path, int type) {
  UniqueFd connected(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  CHECK(connected.valid());
  const sockaddr_un address = AddressOf(path);
  CHECK(connect(connected.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0);
  return connected;
}

std::string ReceiveAllForTest(const UniqueFd& listener) {
  const UniqueFd connection = AcceptForTest(listener);
  std::string received;
  char buffer[4096];
  for (ssize_t count = 0; (count = recv(connection.get(), buffer, sizeof(buffer), 0)) > 0;) {
    received.append(buffer, static_cast<size_t>(count));
  }
  return received;
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
