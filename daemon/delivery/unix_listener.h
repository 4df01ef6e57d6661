// A listening Unix socket that belongs to one daemon.
#pragma once

#include <memory>
#include <optional>
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

  struct Options {
    std::string path;
    // SOCK_STREAM or SOCK_SEQPACKET.
    int type = 0;
    // Of the socket file. To connect needs the right to write to it.
    mode_t mode = 0600;
    // Of the socket file; this process's own when absent.
    std::optional<gid_t> group = std::nullopt;
    // Only root and this process's own user come in, whatever the file's mode has become.
    bool owners_only = false;
  };
  // Makes the parent directories (0755), takes the lock file `path` + ".lock", replaces a socket
  // file that nobody listens on, binds, gives the file its group and mode, and listens. Nobody can
  // connect before the file has them. Errors name the path:
  //   FAILED_PRECONDITION  a living daemon serves it (its pid is named), the file is no socket, or
  //                        everybody may write to the directory and so replace the socket
  //   INVALID_ARGUMENT     the path is not absolute or too long
  //   PERMISSION_DENIED    among others: this process may not give the file its group
  //   others               as the system said
  static absl::StatusOr<std::unique_ptr<UnixListener>> Bind(const Options& options);
  // Closes.
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // Becomes readable when a connection waits; non-blocking. -1 after Close().
  int fd() const { return socket_.get(); }
  const std::string& path() const { return options_.path; }

  // The next connection that may come in. NOT_FOUND: none waits. Anything else: one was refused and
  // closed (another user, with owners_only; its process is gone; no descriptor left); it is logged,
  // and the caller goes on.
  absl::StatusOr<Connection> Accept();
  // Logs that a connection is turned away, at most once in kRefusalLogPeriod, with how many were
  // since the last line. Returns `why`.
  absl::Status Refuse(absl::Status why);

  // Stops listening and removes the socket and its lock file.
  void Close();

 private:
  UnixListener(const Options& options, UniqueFd lock);
  absl::Status Listen();
  absl::Status GiveGroupAndMode();

  const Options options_;
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
