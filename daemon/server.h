// The daemon: makes every part, in the order of their lifetimes, and takes them down again.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "daemon/config.h"

namespace forestage {

// Create, Start, Drain and the destructor are for one thread (main's). Nothing of this handles
// signals.
//
//   created --Start--> serving --Drain--> drained
class Server {
 public:
  // Binds the sockets, so that a second daemon on the same path is refused before anything is
  // touched (FAILED_PRECONDITION names who holds it), and the metrics endpoint. Nothing is accepted
  // yet. Errors name the setting that is wrong.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const Config& config);
  // Drains, if that has not been done. Blocks until every thread has ended: do not run it when
  // Drain() said DEADLINE_EXCEEDED, but leave by _exit.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Accepts connections from now on.
  absl::Status Start();

  // Stops accepting, tells every session that the daemon is draining, stops reading, closes the
  // boards, ends the gRPC server and removes the sockets. Returns within `within` whatever hangs:
  // DEADLINE_EXCEEDED when a thread is still held by storage then. Idempotent.
  absl::Status Drain(absl::Duration within);

  // Where metrics are served, with the real port; empty when off.
  std::string metrics_address() const;

 private:
  class Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace forestage
