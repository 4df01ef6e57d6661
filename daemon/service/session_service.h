// gRPC adapter of sessions, without logic: messages in, calls to SessionRegistry; its events out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "daemon/limits.h"
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
    // Streams of one user at a time, opened or not.
    size_t streams_per_user_max = kStreamsPerUserMax;
    // See limits.h.
    absl::Duration open_timeout = kStreamOpenTimeout;
    absl::Duration end_timeout = kStreamEndTimeout;
  };
  // Both must outlive it.
  SessionService(Options options, SessionRegistry& registry, const PeerTable& peers);
  ~SessionService() override;

  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context) override;

  // Ends streams whose `open` does not come, and cuts off those whose client does not read how they
  // ended. To be called now and then.
  void Sweep();
  // Streams that gRPC has now.
  size_t stream_count() const;

 private:
  class Streams;

  const Options options_;
  SessionRegistry& registry_;
  const PeerTable& peers_;
  const std::shared_ptr<Streams> streams_;
};

}  // namespace forestage
