#include "common/peer_identity.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "common/errno_status.h"

namespace forestage {
namespace {

// Both are missing from the headers of Debian 12.
constexpr int kSoPeerPidfd = 77;
constexpr long kPidFileSystemMagic = 0x50494446;

// The inode of a pidfd names its process only since pidfds have a file system of their own
// (Linux 6.9); before, all pidfds share one inode.
std::optional<ino_t> ProcessInode(const PeerIdentity& peer) {
  struct statfs file_system = {};
  struct stat attributes = {};
  if (peer.pidfd == nullptr || fstatfs(peer.pidfd->get(), &file_system) != 0 ||
      static_cast<long>(file_system.f_type) != kPidFileSystemMagic ||
      fstat(peer.pidfd->get(), &attributes) != 0) {
    return std::nullopt;
  }
  return attributes.st_ino;
}

}  // namespace

absl::StatusOr<PeerIdentity> PeerIdentityOf(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "getsockopt(SO_PEERCRED)");
  }
  PeerIdentity peer = {
      .pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid, .pidfd = nullptr};
  int pidfd = -1;
  length = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &length) != 0) {
    if (errno == ESRCH || errno == ENODATA || errno == EINVAL) {
      return absl::NotFoundError("the process that connected has exited");
    }
    if (credentials.pid > 0) {
      pidfd = static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0));
      if (pidfd < 0 && errno == ESRCH) {
        return absl::NotFoundError("the process that connected has exited");
      }
    }
  }
  if (pidfd >= 0) peer.pidfd = std::make_shared<const UniqueFd>(pidfd);
  return peer;
}

std::vector<gid_t> PeerGroupsOf(int socket) {
  std::vector<gid_t> groups(64);
  while (true) {
    socklen_t length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0) {
      groups.resize(length / sizeof(gid_t));
      return groups;
    }
    // It says how many there are; more than the kernel allows are none.
    if (errno != ERANGE || length <= groups.size() * sizeof(gid_t)) return {};
    groups.resize(length / sizeof(gid_t));
  }
}

bool SameProcess(const PeerIdentity& a, const PeerIdentity& b) {
  if (a.uid != b.uid || a.pid != b.pid) return false;
  const std::optional<ino_t> inode_a = ProcessInode(a);
  const std::optional<ino_t> inode_b = ProcessInode(b);
  if (inode_a.has_value() && inode_b.has_value()) return *inode_a == *inode_b;
  // Without names for processes a number of 0 (another PID namespace) says nothing.
  return a.pid > 0;
}

bool ProcessExited(const PeerIdentity& peer) {
  if (peer.pidfd == nullptr) return false;
  pollfd entry = {.fd = peer.pidfd->get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0;
}

}  // namespace forestage
