// Messages with file descriptors over a SOCK_SEQPACKET Unix socket (SCM_RIGHTS).
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "common/unique_fd.h"

namespace forestage {

// The kernel's limit on descriptors in one message (SCM_MAX_FD).
inline constexpr size_t kDescriptorsPerMessageMax = 253;

struct DescriptorMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> descriptors;
  // The kernel dropped descriptors: this process may open no more (RLIMIT_NOFILE), or there were
  // more than descriptors_max. Those that came are in `descriptors`, in order.
  bool descriptors_truncated = false;
  // The message was longer than the buffer; `bytes` holds its beginning.
  bool bytes_truncated = false;
};

// Sends one message, all or nothing. Blocks until `deadline` while the socket is full, whether or
// not it is in blocking mode (DEADLINE_EXCEEDED). UNAVAILABLE: the peer is gone.
// Requires: at least one byte, at most kDescriptorsPerMessageMax descriptors.
absl::Status SendDescriptorMessage(int socket, absl::Span<const std::byte> bytes,
                                   absl::Span<const int> descriptors, absl::Time deadline);

// Receives one message of at most `bytes_max` bytes and `descriptors_max` descriptors; descriptors
// arrive close-on-exec. Blocks until `deadline` (DEADLINE_EXCEEDED). UNAVAILABLE: the peer closed
// the connection.
absl::StatusOr<DescriptorMessage> ReceiveDescriptorMessage(
    int socket, size_t bytes_max, absl::Time deadline,
    size_t descriptors_max = kDescriptorsPerMessageMax);

// The next message's bytes, which stay where they are; no descriptor of it is taken. For a receiver
// that must not own, and so later close, what it does not want: closing a file may block as long as
// its file system pleases. Never blocks: DEADLINE_EXCEEDED when no message waits.
absl::StatusOr<DescriptorMessage> PeekDescriptorMessage(int socket, size_t bytes_max);

// Drops the next message, if one waits, without ever owning its descriptors. Never blocks.
void DiscardDescriptorMessage(int socket);

}  // namespace forestage
