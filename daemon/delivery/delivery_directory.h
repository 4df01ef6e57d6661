// What the descriptor exchange needs to know of sessions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

#include "common/descriptor_protocol.h"
#include "common/peer_identity.h"
#include "common/unique_fd.h"

namespace forestage {

// What a ready session's rank gets; owned by the reply.
struct DeliveredDescriptors {
  UniqueFd catalog;
  UniqueFd board;
};

// Thread-safe; no call blocks.
class DeliveryDirectory {
 public:
  virtual ~DeliveryDirectory() = default;
  // The session of this token. PERMISSION_DENIED: unknown, or of another process.
  virtual absl::StatusOr<uint64_t> FindByToken(const SessionToken& token,
                                               const PeerIdentity& peer) = 0;
  // Returns how many shards the session holds descriptors of by now.
  virtual absl::StatusOr<uint32_t> AddShards(uint64_t session, uint32_t first_index,
                                             std::vector<UniqueFd> descriptors) = 0;
  // Calls `done` once, now or later, from any thread.
  virtual void WhenReady(uint64_t session,
                         std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) = 0;
};

}  // namespace forestage
