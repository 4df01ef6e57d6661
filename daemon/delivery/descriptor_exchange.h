// The descriptor socket: takes shards' descriptors from ranks and gives them those of the catalog
// and the board. One thread with one epoll set serves every connection and never blocks. The
// protocol is common/descriptor_protocol.h and docs/descriptor_protocol.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "common/descriptor_passing.h"
#include "common/descriptor_protocol.h"
#include "common/unique_fd.h"
#include "daemon/delivery/delivery_directory.h"
#include "daemon/delivery/unix_listener.h"
#include "daemon/limits.h"

namespace forestage {

// A connection after an error reply is closed; so is one that says nothing for the idle timeout,
// unless it waits for our answer. Descriptors of a message that is refused are never taken out of
// the socket: their close() would be ours, and blocks as long as their file system pleases.
class DescriptorExchange {
 public:
  struct Options {
    size_t connections_max = kConnectionsMax;
    size_t connections_per_user_max = kConnectionsPerUserMax;
    size_t loans_unread_per_user_max = kLoansUnreadPerUserMax;
    absl::Duration idle_timeout = kDescriptorIdleTimeout;
  };
  // `listener` is of type SOCK_SEQPACKET. `directory` must outlive this object. Nothing is accepted
  // before Start().
  static absl::StatusOr<std::unique_ptr<DescriptorExchange>> Create(
      const Options& options, std::unique_ptr<UnixListener> listener, DeliveryDirectory& directory);
  // Stops.
  ~DescriptorExchange();
  DescriptorExchange(const DescriptorExchange&) = delete;
  DescriptorExchange& operator=(const DescriptorExchange&) = delete;

  void Start();
  // Takes no new connections and removes the socket; open ones go on. Idempotent.
  void StopAccepting();
  // Closes every connection and ends the thread. Idempotent.
  void Stop();

 private:
  struct Connection;
  class Answers;

  DescriptorExchange(const Options& options, std::unique_ptr<UnixListener> listener,
                     DeliveryDirectory& directory, UniqueFd epoll,
                     std::shared_ptr<Answers> answers);
  absl::Status Watch(int fd, uint64_t key);
  void Run();
  void Accept();
  void OnReadable(uint64_t key);
  absl::Status CheckPlaceFor(uid_t uid) const;
  // What becomes of a message is decided before it is taken from the socket.
  void Handle(Connection& connection, const DescriptorMessage& peeked);
  void AwaitDelivery(Connection& connection, uint64_t session);
  void TakeShards(Connection& connection, uint64_t session, const DescriptorRequest& request);
  void LendShards(Connection& connection, uint64_t session, const DescriptorRequest& request);
  // The descriptors of a batch that is admitted to `account`; nullopt when they are not as
  // announced, and the connection was told.
  std::optional<std::vector<UniqueFd>> ReceiveBatch(Connection& connection, uint64_t session,
                                                    const DescriptorRequest& request,
                                                    const DeliveryAccount& account);
  void Refuse(Connection& connection, const absl::Status& status);
  void SendAnswers();
  void Reply(Connection& connection, const absl::Status& status, uint32_t accepted_count,
             const DeliveredDescriptors* delivered);
  void ReplyLoans(Connection& connection, std::vector<SharedFd> loans);
  // What one user's processes have not read yet of what was lent to them.
  size_t UnreadLoans(uid_t uid) const;
  void Close(std::map<uint64_t, std::unique_ptr<Connection>>::iterator entry);
  void Send(Connection& connection, absl::Span<const std::byte> message,
            const std::vector<int>& descriptors);
  void CloseIdle();

  // Constant after construction.
  const Options options_;
  DeliveryDirectory& directory_;
  const UniqueFd epoll_;
  const std::shared_ptr<Answers> answers_;

  // Exchange thread only, while it runs.
  const std::unique_ptr<UnixListener> listener_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  // Closed, but for loans in them that the other side has not read yet: they still count.
  std::vector<std::unique_ptr<Connection>> unread_;
  uint64_t next_key_;

  std::atomic<bool> accepting_ = true;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace forestage
