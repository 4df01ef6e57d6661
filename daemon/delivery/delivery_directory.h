// What the descriptor exchange needs to know of sessions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <sys/types.h>

#include "common/descriptor_protocol.h"
#include "common/peer_identity.h"
#include "common/unique_fd.h"

namespace forestage {

// What a ready session's rank gets; owned by the reply.
struct DeliveredDescriptors {
  UniqueFd catalog;
  UniqueFd board;
};

// Whom descriptors count for; of the directory's own make.
using DeliveryAccount = std::shared_ptr<void>;

// Thread-safe; no call blocks.
class DeliveryDirectory {
 public:
  virtual ~DeliveryDirectory() = default;
  // The session of this token. PERMISSION_DENIED: unknown, or of another process.
  virtual absl::StatusOr<uint64_t> FindByToken(const SessionToken& token,
                                               const PeerIdentity& peer) = 0;
  // Asked before a batch is received, since whoever owns a stranger's descriptor must close it, and
  // closing may block. The account goes with the descriptors; it may be anything but is not null.
  virtual absl::StatusOr<DeliveryAccount> AdmitShards(uint64_t session, uint32_t first_index,
                                                      size_t count) = 0;
  // Returns how many shards the session holds descriptors of by now. Takes the descriptors also
  // when it fails.
  virtual absl::StatusOr<uint32_t> AddShards(uint64_t session, uint32_t first_index,
                                             std::vector<UniqueFd> descriptors,
                                             DeliveryAccount account) = 0;
  // What was admitted came otherwise: the client lied, and its session ends.
  virtual void RefuseShards(uint64_t session, std::vector<UniqueFd> descriptors,
                            DeliveryAccount account, absl::string_view why) = 0;
  // Asked before descriptors that only name shards (O_PATH) are received, as AdmitShards.
  virtual absl::StatusOr<DeliveryAccount> AdmitNamedShards(uint64_t session, uint32_t first_index,
                                                           size_t count) = 0;
  // What the session may borrow of the shards that it has shown to know. Takes the descriptors.
  // Calls `done` once, now or later, from any thread, with one entry for each; null: the client
  // opens it itself. `groups`: those of the peer.
  virtual void LendShards(uint64_t session, std::vector<UniqueFd> named, std::vector<gid_t> groups,
                          DeliveryAccount account,
                          std::function<void(absl::StatusOr<std::vector<SharedFd>>)> done) = 0;
  // Calls `done` once, now or later, from any thread.
  virtual void WhenReady(uint64_t session,
                         std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) = 0;
};

}  // namespace forestage
