// The client's side of the descriptor socket; see docs/descriptor_protocol.md.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/daemon_session.h"

#include "common/descriptor_protocol.h"
#include "common/unique_fd.h"

namespace forestage {

struct DeliveredDescriptors {
  UniqueFd catalog;
  UniqueFd board;
};

// One connection of one session. Not thread-safe. Every call blocks until `deadline` at most.
// Errors: the daemon's own refusal with its code and message; UNAVAILABLE: it hung up;
// DEADLINE_EXCEEDED; INTERNAL: it broke the protocol.
class DescriptorClient {
 public:
  static absl::StatusOr<DescriptorClient> Connect(const std::string& socket_path,
                                                  const SessionToken& token, absl::Time deadline);

  absl::Status SendShards(absl::Span<const OfferedShard> shards, absl::Time deadline);
  // Requires: SendShards succeeded, and the daemon said that the checkpoint is ready.
  absl::StatusOr<DeliveredDescriptors> Fetch(absl::Time deadline);

 private:
  DescriptorClient(UniqueFd socket, const SessionToken& token)
      : socket_(std::move(socket)), token_(token) {}

  UniqueFd socket_;
  SessionToken token_;
};

}  // namespace forestage
