// Which process is behind a connection that was handed to gRPC.
#pragma once

#include <cstddef>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include <sys/types.h>

#include "common/peer_identity.h"

namespace forestage {

// By descriptor number, since gRPC names such a peer "fd:N". gRPC closes descriptors without
// telling us and the kernel reuses numbers, so an entry is overwritten at accept, and entries whose
// descriptor is not the same socket any more are dropped, with their pidfds. Thread-safe.
class PeerTable {
 public:
  struct Options {
    size_t connections_max = 0;
    size_t connections_per_user_max = 0;
  };
  explicit PeerTable(const Options& options) : options_(options) {}

  // RESOURCE_EXHAUSTED: so many connections are open already, or of this user.
  absl::Status Add(int fd, const PeerIdentity& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // `grpc_peer` is ServerContext::peer(). PERMISSION_DENIED: not a connection that we accepted.
  absl::StatusOr<PeerIdentity> Find(absl::string_view grpc_peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets connections that are closed, so that nothing of them is held, and ends those whose
  // process has exited: a child that it forked may have them and never use them. To be called now
  // and then.
  void Sweep() ABSL_LOCKS_EXCLUDED(mutex_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    PeerIdentity peer;
    ino_t socket_inode = 0;
  };
  void DropClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::map<int, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forestage
