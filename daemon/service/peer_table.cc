#include "daemon/service/peer_table.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/errno_status.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// gRPC, whose descriptor it is, sees the end of the connection and closes it.
void EndConnection(int fd, ino_t socket_inode) {
  // gRPC may close it at any time, and its number be another's: what we look at and end is ours.
  const UniqueFd connection(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  struct stat attributes = {};
  if (!connection.valid() || fstat(connection.get(), &attributes) != 0 ||
      attributes.st_ino != socket_inode) {
    return;
  }
  shutdown(connection.get(), SHUT_RDWR);
}

}  // namespace

absl::Status PeerTable::Add(int fd, const PeerIdentity& peer) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return ErrnoStatus(errno, "fstat of a connection");
  absl::MutexLock lock(&mutex_);
  DropClosed();
  entries_.erase(fd);
  if (entries_.size() >= options_.connections_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat(entries_.size(), " connections are open, the most that are allowed"));
  }
  const auto of_user = std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry.second.peer.uid == peer.uid;
  });
  if (static_cast<size_t>(of_user) >= options_.connections_per_user_max) {
    return absl::ResourceExhaustedError(absl::StrCat(of_user, " connections of uid ", peer.uid,
                                                     " are open, the most that one user may have"));
  }
  entries_[fd] = {.peer = peer, .socket_inode = attributes.st_ino};
  return absl::OkStatus();
}

absl::StatusOr<PeerIdentity> PeerTable::Find(absl::string_view grpc_peer) const {
  int fd = -1;
  absl::MutexLock lock(&mutex_);
  if (absl::StartsWith(grpc_peer, "fd:") && absl::SimpleAtoi(grpc_peer.substr(3), &fd)) {
    const auto found = entries_.find(fd);
    if (found != entries_.end()) return found->second.peer;
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the peer \"", grpc_peer, "\" did not connect through the daemon's socket"));
}

void PeerTable::Sweep() {
  absl::MutexLock lock(&mutex_);
  DropClosed();
  for (const auto& [fd, entry] : entries_) {
    if (ProcessExited(entry.peer)) EndConnection(fd, entry.socket_inode);
  }
}

size_t PeerTable::size() const {
  absl::MutexLock lock(&mutex_);
  return entries_.size();
}

void PeerTable::DropClosed() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    struct stat attributes = {};
    if (fstat(entry->first, &attributes) != 0 || attributes.st_ino != entry->second.socket_inode) {
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
}

}  // namespace forestage
