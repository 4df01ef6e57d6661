// A listening Unix socket that belongs to one daemon.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <sys/types.h>

#include "common/peer_identity.h"
#include "common/unique_fd.h"

namespace forestage {

// For one thread at a time.
class UnixListener {
 public:
  struct Connection {
    UniqueFd socket;  // close-on-exec, non-blocking
    PeerIdentity peer;
  };

  // Makes the parent directories (0755), takes the lock file `path` + ".lock", replaces a socket
  // file that nobody listens on, binds with mode 0600 and listens. `type` is SOCK_STREAM or
  // SOCK_SEQPACKET. Errors name the path:
  //   FAILED_PRECONDITION  a living daemon serves it (its pid is named), or the file is no socket
  //   INVALID_ARGUMENT     the path is not absolute or too long
  //   others               as the system said
  static absl::StatusOr<std::unique_ptr<UnixListener>> Bind(const std::string& path, int type);
  // Closes.
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // Becomes readable when a connection waits; non-blocking. -1 after Close().
  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

  // The next connection that may come in. NOT_FOUND: none waits. Anything else: one was refused and
  // closed (another user: only root and this process's own user may connect; its process is gone;
  // no descriptor left); it is logged, and the caller goes on.
  absl::StatusOr<Connection> Accept();

  // Stops listening and removes the socket and its lock file.
  void Close();

 private:
  UnixListener(std::string path, UniqueFd lock);
  absl::Status Listen(int type);
  absl::Status Refuse(absl::Status why);

  const std::string path_;
  UniqueFd lock_;
  UniqueFd socket_;
  // Given up for a moment when no descriptor is left, to take a connection and close it.
  UniqueFd spare_;
  dev_t bound_device_ = 0;
  ino_t bound_inode_ = 0;
  absl::Time next_log_ = absl::InfinitePast();
  uint64_t unlogged_refusals_ = 0;
};

}  // namespace forestage
