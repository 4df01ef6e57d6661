#include "daemon/service/session_directory.h"

#include <utility>

namespace forestage {

absl::StatusOr<uint64_t> SessionDirectory::FindByToken(const SessionToken& token,
                                                       const PeerIdentity& peer) {
  return registry_.FindByToken(token, peer);
}

absl::StatusOr<uint32_t> SessionDirectory::AddShards(uint64_t session, uint32_t first_index,
                                                     std::vector<UniqueFd> descriptors) {
  return registry_.AddShards(session, first_index, std::move(descriptors));
}

void SessionDirectory::WhenReady(uint64_t session,
                                 std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) {
  registry_.WhenReady(session, [done = std::move(done)](absl::StatusOr<SessionDelivery> delivery) {
    if (!delivery.ok()) return done(delivery.status());
    done(DeliveredDescriptors{.catalog = std::move(delivery->catalog),
                              .board = std::move(delivery->board)});
  });
}

}  // namespace forestage
