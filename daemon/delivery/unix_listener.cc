#include "daemon/delivery/unix_listener.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

constexpr mode_t kDirectoryMode = 0755;
// Until the file has its group: nobody else may connect.
constexpr mode_t kFirstMode = 0600;
constexpr int kListenBacklog = 128;
// The lock file can be removed under us by a daemon that ends; so often we try again.
constexpr int kLockAttemptsMax = 16;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  if (path.empty() || path[0] != '/' || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path \"", path,
                                                   "\" must be absolute and have at most ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status MakeParentDirectories(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (mkdir(directory.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("making the directory ", directory));
    }
  }
  return absl::OkStatus();
}

// Whoever may write to the directory may put a socket of his own in the place of ours.
absl::Status CheckDirectory(const std::string& path) {
  const std::string directory = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  struct stat attributes = {};
  if (stat(directory.c_str(), &attributes) != 0) return ErrnoStatus(errno, directory);
  if ((attributes.st_mode & S_IWOTH) != 0 && (attributes.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("everybody may write to ", directory, ", and so replace the socket ", path,
                     "; chmod o-w it, or choose another directory"));
  }
  return absl::OkStatus();
}

std::string HolderOf(int lock) {
  char text[32] = {};
  const ssize_t count = pread(lock, text, sizeof(text) - 1, 0);
  if (count <= 0) return "unknown";
  return std::string(absl::StripSuffix(text, "\n"));
}

// The open file is still the one that `path` names.
bool IsNamed(int fd, const std::string& path) {
  struct stat held = {};
  struct stat named = {};
  return fstat(fd, &held) == 0 && stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

absl::StatusOr<UniqueFd> TakeLock(const std::string& path) {
  for (int attempt = 0; attempt < kLockAttemptsMax; ++attempt) {
    UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock.valid()) {
      return ErrnoStatus(errno, absl::StrCat("opening the lock file ", path,
                                             " (the daemon must be able to write to the socket's "
                                             "directory)"));
    }
    if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("locking ", path));
      return absl::FailedPreconditionError(
          absl::StrCat("another forestaged (pid ", HolderOf(lock.get()), ") holds ", path,
                       "; stop it, or give this one another socket path"));
    }
    // Whoever held the lock before may have removed the file between our open and our lock.
    if (!IsNamed(lock.get(), path)) continue;
    const std::string pid = absl::StrCat(getpid(), "\n");
    if (ftruncate(lock.get(), 0) != 0 ||
        pwrite(lock.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      return ErrnoStatus(errno, absl::StrCat("writing ", path));
    }
    return lock;
  }
  return absl::UnavailableError(absl::StrCat("the lock file ", path, " changes all the time"));
}

// Removes a socket file that nobody listens on. OK when there is none.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address, int type) {
  struct stat attributes = {};
  if (lstat(path.c_str(), &attributes) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(errno, path);
  }
  if (!S_ISSOCK(attributes.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is no socket; remove it or choose another socket path"));
  }
  const UniqueFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return ErrnoStatus(errno, "socket");
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("a living process listens on ", path, "; stop it or choose another path"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("removing the stale socket ", path));
  }
  spdlog::info("replaced the stale socket {}", path);
  return absl::OkStatus();
}

}  // namespace

UnixListener::UnixListener(const Options& options, UniqueFd lock)
    : options_(options), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<UnixListener>> UnixListener::Bind(const Options& options) {
  RETURN_IF_ERROR(AddressOf(options.path).status());
  RETURN_IF_ERROR(MakeParentDirectories(options.path));
  RETURN_IF_ERROR(CheckDirectory(options.path));
  ASSIGN_OR_RETURN(UniqueFd lock, TakeLock(options.path + ".lock"));
  std::unique_ptr<UnixListener> listener(new UnixListener(options, std::move(lock)));
  RETURN_IF_ERROR(listener->Listen());
  return listener;
}

absl::Status UnixListener::Listen() {
  const std::string& path = options_.path;
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  RETURN_IF_ERROR(RemoveStaleSocket(path, address, options_.type));
  UniqueFd socket_fd(socket(AF_UNIX, options_.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd.valid()) return ErrnoStatus(errno, "socket");
  // Before bind, which makes the file with this mode: there is no moment with a wider one.
  if (fchmod(socket_fd.get(), kFirstMode) != 0) return ErrnoStatus(errno, "fchmod of a socket");
  if (bind(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("binding ", path));
  }
  struct stat attributes = {};
  if (lstat(path.c_str(), &attributes) != 0) return ErrnoStatus(errno, path);
  bound_device_ = attributes.st_dev;
  bound_inode_ = attributes.st_ino;
  socket_ = std::move(socket_fd);
  RETURN_IF_ERROR(GiveGroupAndMode());
  if (listen(socket_.get(), kListenBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening on ", path));
  }
  spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return absl::OkStatus();
}

absl::Status UnixListener::GiveGroupAndMode() {
  const std::string& path = options_.path;
  if (options_.group.has_value() &&
      lchown(path.c_str(), static_cast<uid_t>(-1), *options_.group) != 0) {
    const int error = errno;
    return ErrnoStatus(error,
                       absl::StrCat("giving ", path, " to group ", *options_.group,
                                    error == EPERM ? " (run the daemon as root or as a member of "
                                                     "the group, or choose another socket-group)"
                                                   : ""));
  }
  // The umask counts at bind, not here.
  if (options_.mode != kFirstMode && chmod(path.c_str(), options_.mode) != 0) {
    return ErrnoStatus(errno, absl::StrCat("chmod of ", path));
  }
  return absl::OkStatus();
}

UnixListener::~UnixListener() { Close(); }

void UnixListener::Close() {
  socket_.Reset();
  struct stat attributes = {};
  if (bound_inode_ != 0 && lstat(path().c_str(), &attributes) == 0 &&
      attributes.st_ino == bound_inode_ && attributes.st_dev == bound_device_) {
    unlink(path().c_str());
  }
  bound_inode_ = 0;
  const std::string lock_path = path() + ".lock";
  // While we hold it, nobody else can make the named file theirs; somebody may have removed it.
  if (lock_.valid() && IsNamed(lock_.get(), lock_path)) unlink(lock_path.c_str());
  lock_.Reset();
}

absl::Status UnixListener::Refuse(absl::Status why) {
  ++unlogged_refusals_;
  const absl::Time now = absl::Now();
  if (now >= next_log_) {
    spdlog::warn("connection refused socket={} reason=\"{}\" refusals={}", path(),
                 std::string(why.message()), unlogged_refusals_);
    next_log_ = now + kRefusalLogPeriod;
    unlogged_refusals_ = 0;
  }
  return why;
}

absl::StatusOr<UnixListener::Connection> UnixListener::Accept() {
  Connection connection;
  connection.socket.Reset(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.socket.valid()) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE) {
      spare_.Reset();
      const UniqueFd rejected(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      spare_.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
      return Refuse(absl::ResourceExhaustedError("no descriptor left (RLIMIT_NOFILE)"));
    }
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) {
      return absl::NotFoundError("no connection waits");
    }
    return Refuse(ErrnoStatus(error, "accept"));
  }
  absl::StatusOr<PeerIdentity> peer = PeerIdentityOf(connection.socket.get());
  if (!peer.ok()) {
    return Refuse(
        absl::UnauthenticatedError(absl::StrCat("peer unknown: ", peer.status().message())));
  }
  if (options_.owners_only && peer->uid != 0 && peer->uid != geteuid()) {
    return Refuse(absl::PermissionDeniedError(absl::StrCat("uid ", peer->uid, " (pid ", peer->pid,
                                                           ") is neither root nor uid ", geteuid(),
                                                           ", which runs this daemon")));
  }
  connection.peer = std::move(*peer);
  return connection;
}

}  // namespace forestage
