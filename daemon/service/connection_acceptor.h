// Accepts connections of the gRPC socket itself, so that it knows who connects, and hands them on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/unique_fd.h"
#include "daemon/delivery/unix_listener.h"
#include "daemon/service/peer_table.h"

namespace forestage {

class ConnectionAcceptor {
 public:
  // Takes a connected, non-blocking socket; called from the acceptor's thread.
  using Handover = std::function<void(UniqueFd connection)>;

  // Called from the acceptor's thread every kPeerSweepPeriod; must not block. May be null.
  using Sweep = std::function<void()>;

  // `peers` must outlive it; closed ones are swept from it. Nothing is accepted before Start().
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Create(
      std::unique_ptr<UnixListener> listener, PeerTable& peers, Handover handover,
      Sweep sweep = nullptr);
  // Stops.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  void Start();
  // Takes no new connections and removes the socket. After it returns neither `handover` nor
  // `sweep` is called any more. Idempotent.
  void Stop();

 private:
  ConnectionAcceptor(std::unique_ptr<UnixListener> listener, PeerTable& peers, Handover handover,
                     Sweep sweep, UniqueFd wake);
  void Run();
  void AcceptOne();

  const std::unique_ptr<UnixListener> listener_;
  PeerTable& peers_;
  const Handover handover_;
  const Sweep sweep_;
  const UniqueFd wake_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace forestage
