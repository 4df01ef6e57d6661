#include "client/src/listener_trust.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <sys/socket.h>

#include "common/errno_status.h"
#include "common/socket_path.h"

namespace forestage {
namespace {

// User id that stands for "not in this user namespace".
constexpr uid_t kOverflowUid = 65534;
constexpr uid_t kNoUid = static_cast<uid_t>(-1);
// Of a user namespace in which every user has a number.
constexpr uint64_t kAllUsers = 4294967295;
constexpr size_t kEntryBytesFirst = 1024;
constexpr size_t kEntryBytesMax = 1024 * 1024;

// An entry of the system's user database, found by `look_up`: getpwnam_r or getpwuid_r.
using LookUp = std::function<int(passwd* entry, char* buffer, size_t bytes, passwd** found)>;
struct User {
  std::string name;
  uid_t uid = kNoUid;
};
std::optional<User> FindUser(const LookUp& look_up) {
  for (size_t bytes = kEntryBytesFirst; bytes <= kEntryBytesMax; bytes *= 2) {
    std::vector<char> buffer(bytes);
    passwd entry = {};
    passwd* found = nullptr;
    const int error = look_up(&entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE) continue;
    if (found == nullptr) return std::nullopt;
    return User{.name = entry.pw_name, .uid = entry.pw_uid};
  }
  return std::nullopt;
}

// kNoUid: there is no such user here.
uid_t UidOf(const std::string& user) {
  // A name may not be a number, so there is no doubt.
  if (std::all_of(user.begin(), user.end(), absl::ascii_isdigit)) {
    uint32_t number = 0;
    return absl::SimpleAtoi(user, &number) ? number : kNoUid;
  }
  const std::optional<User> found =
      FindUser([&user](passwd* entry, char* buffer, size_t bytes, passwd** result) {
        return getpwnam_r(user.c_str(), entry, buffer, bytes, result);
      });
  return found.has_value() ? found->uid : kNoUid;
}

// "uid 7 (forestage)".
std::string TextOf(uid_t uid) {
  const std::optional<User> found =
      FindUser([uid](passwd* entry, char* buffer, size_t bytes, passwd** result) {
        return getpwuid_r(uid, entry, buffer, bytes, result);
      });
  return absl::StrCat("uid ", uid, " (", found.has_value() ? found->name : "without a name here",
                      ")");
}

bool AllUsersHaveNumbers() {
  std::ifstream file("/proc/self/uid_map");
  uint64_t inside = 0;
  uint64_t outside = 0;
  uint64_t count = 0;
  return (file >> inside >> outside >> count) && count == kAllUsers;
}

}  // namespace

absl::Status CheckTrusted(const DaemonSocket& socket, const Listener& listener) {
  if (listener.uid == 0) return absl::OkStatus();
  const bool unknown = listener.uid == kOverflowUid && !listener.all_users_have_numbers;
  // Two users without a number are not one user.
  if (listener.uid == listener.own_uid && !unknown) return absl::OkStatus();
  std::string wanted;
  if (!socket.daemon_user.empty()) {
    const uid_t daemon_uid = UidOf(socket.daemon_user);
    if (daemon_uid != kNoUid && daemon_uid == listener.uid) return absl::OkStatus();
    wanted = absl::StrCat(", nor the daemon's user that was given, '", socket.daemon_user, "'",
                          daemon_uid == kNoUid ? " (not known here: give the number)"
                                               : absl::StrCat(" (uid ", daemon_uid, ")"));
  }
  if (unknown) {
    return absl::UnauthenticatedError(absl::StrCat(
        socket.path, ": who listens there is shown as uid ", listener.uid,
        ", which in this user namespace is everybody outside of it, the node's root as anybody "
        "else",
        wanted,
        ": run daemon and ranks in one user namespace, or, if only root can write to the "
        "directory of the socket and to those above, trust them all with ",
        kDaemonUserVariable, "=", listener.uid));
  }
  return absl::UnauthenticatedError(absl::StrCat(
      socket.path, ": ", TextOf(listener.uid), " listens there, who is neither root nor this ",
      "process's own user (uid ", listener.own_uid, ")", wanted,
      ", and may have put a socket in the place of the daemon's: if it is the daemon's user, set ",
      kDaemonUserVariable, "=", listener.uid,
      ", else have the socket in a directory that only root can write, below such ones"));
}

absl::Status CheckListener(const DaemonSocket& socket, int socket_fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    const absl::Status status = ErrnoStatus(errno, "getsockopt(SO_PEERCRED)");
    return absl::UnauthenticatedError(absl::StrCat(
        socket.path, ": the kernel does not say who listens there: ", status.message()));
  }
  return CheckTrusted(
      socket, {.uid = peer.uid,
               .own_uid = geteuid(),
               .all_users_have_numbers = peer.uid != kOverflowUid || AllUsersHaveNumbers()});
}

}  // namespace forestage
