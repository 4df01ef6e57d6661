// gRPC adapter of sessions, without logic: messages in, calls to SessionRegistry; its events out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

#include "daemon/service/peer_table.h"
#include "daemon/session/session_registry.h"
#include "forestage/v1/session.grpc.pb.h"

namespace forestage {

// Thread-safe; gRPC calls it.
class SessionService final : public v1::SessionService::CallbackService {
 public:
  struct Options {
    uint64_t generation = 0;
    std::string daemon_version;
    // Told of streams that ended before they were a session; must not block. May be null.
    std::function<void(const absl::Status&)> on_open_refused;
  };
  // Both must outlive it.
  SessionService(Options options, SessionRegistry& registry, const PeerTable& peers);

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context) override;

 private:
  const Options options_;
  SessionRegistry& registry_;
  const PeerTable& peers_;
};

}  // namespace forestage
