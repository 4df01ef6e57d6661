#include "daemon/service/session_directory.h"

#include <utility>

#include "common/status_macros.h"

namespace forestage {
namespace {

// Accounts are what AdmitShards and AdmitNamedShards made.
std::shared_ptr<UserQuota::Charge> ChargeOf(const DeliveryAccount& account) {
  return std::static_pointer_cast<UserQuota::Charge>(account);
}

}  // namespace

absl::StatusOr<uint64_t> SessionDirectory::FindByToken(const SessionToken& token,
                                                       const PeerIdentity& peer) {
  return registry_.FindByToken(token, peer);
}

absl::StatusOr<DeliveryAccount> SessionDirectory::AdmitShards(uint64_t session,
                                                              uint32_t first_index, size_t count) {
  ASSIGN_OR_RETURN(std::shared_ptr<UserQuota::Charge> charge,
                   registry_.AdmitShards(session, first_index, count));
  return DeliveryAccount(std::move(charge));
}

absl::StatusOr<uint32_t> SessionDirectory::AddShards(uint64_t session, uint32_t first_index,
                                                     std::vector<UniqueFd> descriptors,
                                                     DeliveryAccount account) {
  return registry_.AddShards(session, first_index, std::move(descriptors), ChargeOf(account));
}

void SessionDirectory::RefuseShards(uint64_t session, std::vector<UniqueFd> descriptors,
                                    DeliveryAccount account, absl::string_view why) {
  registry_.RefuseShards(session, std::move(descriptors), ChargeOf(account), why);
}

absl::StatusOr<DeliveryAccount> SessionDirectory::AdmitNamedShards(uint64_t session,
                                                                   uint32_t first_index,
                                                                   size_t count) {
  ASSIGN_OR_RETURN(std::shared_ptr<UserQuota::Charge> charge,
                   registry_.AdmitNamedShards(session, first_index, count));
  return DeliveryAccount(std::move(charge));
}

void SessionDirectory::LendShards(uint64_t session, std::vector<UniqueFd> named,
                                  std::vector<gid_t> groups, DeliveryAccount account,
                                  std::function<void(absl::StatusOr<std::vector<SharedFd>>)> done) {
  registry_.LendShards(session, std::move(named), std::move(groups), ChargeOf(account),
                       std::move(done));
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
