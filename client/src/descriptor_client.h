// The client's side of the descriptor socket; see docs/descriptor_protocol.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/daemon_session.h"
#include "client/src/listener_trust.h"

#include "common/descriptor_passing.h"
#include "common/descriptor_protocol.h"
#include "common/unique_fd.h"

namespace forestage {

struct DeliveredDescriptors {
  UniqueFd catalog;
  UniqueFd board;
};

// How long an answer is awaited before somebody looks whether the daemon still lives.
inline constexpr absl::Duration kAnswerPatience = absl::Seconds(1);

// One connection of one session. Not thread-safe. Every call blocks until `deadline` at most.
// Errors: the daemon's own refusal with its code and message; UNAVAILABLE: it hung up;
// DEADLINE_EXCEEDED; INTERNAL: it broke the protocol; those of `is_alive`.
class DescriptorClient {
 public:
  // `is_alive` is called each kAnswerPatience while an answer does not come; its error ends the
  // call. UNAUTHENTICATED as CheckListener: whoever listens has got nothing.
  static absl::StatusOr<DescriptorClient> Connect(const DaemonSocket& daemon_socket,
                                                  const SessionToken& token, absl::Time deadline,
                                                  std::function<absl::Status()> is_alive = nullptr);

  // Asks for descriptors of shards of which this rank shows that it reaches them: their `fd` are
  // O_PATH. Returns one entry a shard, not valid where the rank is to open the file itself. After
  // an error the connection is of no more use; the session is as it was.
  absl::StatusOr<std::vector<UniqueFd>> Borrow(absl::Span<const OfferedShard> shards,
                                               absl::Time deadline);
  absl::Status SendShards(absl::Span<const OfferedShard> shards, absl::Time deadline);
  // Requires: SendShards succeeded, and the daemon said that the checkpoint is ready.
  absl::StatusOr<DeliveredDescriptors> Fetch(absl::Time deadline);

 private:
  struct ReceivedReply {
    DescriptorReply reply;
    // Of a BorrowReply.
    std::array<uint8_t, 32> lent = {};
    std::vector<UniqueFd> descriptors;
    bool descriptors_truncated = false;
  };

  DescriptorClient(UniqueFd socket, const SessionToken& token,
                   std::function<absl::Status()> is_alive)
      : socket_(std::move(socket)), token_(token), is_alive_(std::move(is_alive)) {}
  // Sends a request and receives its reply, which is OK.
  absl::StatusOr<ReceivedReply> Exchange(const DescriptorRequest& request,
                                         absl::Span<const int> descriptors, absl::Time deadline);
  absl::StatusOr<DescriptorMessage> Receive(absl::Time deadline);

  UniqueFd socket_;
  SessionToken token_;
  std::function<absl::Status()> is_alive_;
};

}  // namespace forestage
