// Lets the descriptor exchange find sessions.
#pragma once

#include <vector>

#include "daemon/delivery/delivery_directory.h"
#include "daemon/session/session_registry.h"

namespace forestage {

class SessionDirectory : public DeliveryDirectory {
 public:
  // `registry` must outlive it.
  explicit SessionDirectory(SessionRegistry& registry) : registry_(registry) {}

  absl::StatusOr<uint64_t> FindByToken(const SessionToken& token,
                                       const PeerIdentity& peer) override;
  absl::StatusOr<DeliveryAccount> AdmitShards(uint64_t session, uint32_t first_index,
                                              size_t count) override;
  absl::StatusOr<uint32_t> AddShards(uint64_t session, uint32_t first_index,
                                     std::vector<UniqueFd> descriptors,
                                     DeliveryAccount account) override;
  void RefuseShards(uint64_t session, std::vector<UniqueFd> descriptors, DeliveryAccount account,
                    absl::string_view why) override;
  absl::StatusOr<DeliveryAccount> AdmitNamedShards(uint64_t session, uint32_t first_index,
                                                   size_t count) override;
  void LendShards(uint64_t session, std::vector<UniqueFd> named, std::vector<gid_t> groups,
                  DeliveryAccount account,
                  std::function<void(absl::StatusOr<std::vector<SharedFd>>)> done) override;
  void WhenReady(uint64_t session,
                 std::function<void(absl::StatusOr<DeliveredDescriptors>)> done) override;

 private:
  SessionRegistry& registry_;
};

}  // namespace forestage
