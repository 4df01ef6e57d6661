// Who is at the other end of a Unix socket, as the kernel says.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// Copyable; copies share the pidfd.
struct PeerIdentity {
  // As seen in our PID namespace; 0 when the process is in another one.
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  // Names the process that connected, also across PID namespaces and after its number was used
  // again. Null when the kernel gives none.
  std::shared_ptr<const UniqueFd> pidfd;
};

// The identity of the process that connected `socket` (SO_PEERCRED, SO_PEERPIDFD; pidfd_open on
// kernels before 6.5). Errors of getsockopt; NOT_FOUND when the process is gone already.
absl::StatusOr<PeerIdentity> PeerIdentityOf(int socket);

// The supplementary groups that it had then (SO_PEERGROUPS). Empty when the kernel does not tell.
std::vector<gid_t> PeerGroupsOf(int socket);

// The two connections were made by one process. Never true for two different users.
bool SameProcess(const PeerIdentity& a, const PeerIdentity& b);

// The process has exited (its pidfd is readable). False when there is no pidfd to ask.
bool ProcessExited(const PeerIdentity& peer);

}  // namespace forestage
