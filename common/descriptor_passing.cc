#include "common/descriptor_passing.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "absl/time/clock.h"
#include <sys/socket.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// The kernel does not tell when descriptors in flight have arrived, so we look again.
constexpr absl::Duration kInFlightPause = absl::Milliseconds(5);

// Waits until `events` or an error is signalled on the socket.
absl::Status WaitFor(int socket, short events, absl::Time deadline, const char* what) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError(what);
    const int64_t left_ms =
        std::min<int64_t>(absl::ToInt64Milliseconds(left + absl::Milliseconds(1)), 1000);
    pollfd entry = {.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(left_ms));
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, what);
    if (ready > 0) return absl::OkStatus();
  }
}

// Sleeps a little, but not beyond the deadline.
absl::Status Pause(absl::Time deadline, const char* what) {
  const absl::Duration left = deadline - absl::Now();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError(what);
  absl::SleepFor(std::min(left, kInFlightPause));
  return absl::OkStatus();
}

}  // namespace

absl::Status SendDescriptorMessage(int socket, absl::Span<const std::byte> bytes,
                                   absl::Span<const int> descriptors, absl::Time deadline) {
  CHECK(!bytes.empty());
  CHECK(descriptors.size() <= kDescriptorsPerMessageMax);
  iovec vector = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsPerMessageMax * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t payload_bytes = descriptors.size() * sizeof(int);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(payload_bytes);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(payload_bytes);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), payload_bytes);
  }
  while (true) {
    const ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return absl::OkStatus();
    if (errno == EINTR) continue;
    if (errno == ETOOMANYREFS) {
      // Too many descriptors of this user are in flight, over all of its processes; they get fewer
      // as peers receive.
      RETURN_IF_ERROR(Pause(deadline, "sending descriptors: too many are in flight"));
      continue;
    }
    if (errno != EAGAIN) return ErrnoStatus(errno, "sendmsg");
    RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline, "sending descriptors"));
  }
}

absl::StatusOr<DescriptorMessage> ReceiveDescriptorMessage(int socket, size_t bytes_max,
                                                           absl::Time deadline,
                                                           size_t descriptors_max) {
  CHECK(descriptors_max <= kDescriptorsPerMessageMax);
  DescriptorMessage message;
  message.bytes.resize(bytes_max);
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsPerMessageMax * sizeof(int))];
  iovec vector = {.iov_base = message.bytes.data(), .iov_len = message.bytes.size()};
  msghdr header = {};
  ssize_t received = -1;
  while (true) {
    header = {};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = descriptors_max == 0 ? nullptr : control;
    // Without the padding behind the last one, where the kernel would put one more.
    header.msg_controllen = descriptors_max == 0 ? 0 : CMSG_LEN(descriptors_max * sizeof(int));
    received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (received >= 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return ErrnoStatus(errno, "recvmsg");
    RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline, "waiting for a descriptor message"));
  }
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
      message.descriptors.emplace_back(fd);
    }
  }
  // A message of zero bytes cannot be told from the end of the stream, and we never send one.
  if (received == 0) return absl::UnavailableError("the peer closed the descriptor socket");
  message.bytes.resize(static_cast<size_t>(received));
  message.descriptors_truncated = (header.msg_flags & MSG_CTRUNC) != 0;
  message.bytes_truncated = (header.msg_flags & MSG_TRUNC) != 0;
  return message;
}

absl::StatusOr<DescriptorMessage> PeekDescriptorMessage(int socket, size_t bytes_max) {
  DescriptorMessage message;
  message.bytes.resize(bytes_max);
  iovec vector = {.iov_base = message.bytes.data(), .iov_len = message.bytes.size()};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  ssize_t received = -1;
  do {
    received = recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && errno == EAGAIN) return absl::DeadlineExceededError("no message waits");
  if (received < 0) return ErrnoStatus(errno, "recvmsg");
  if (received == 0) return absl::UnavailableError("the peer closed the descriptor socket");
  message.bytes.resize(static_cast<size_t>(received));
  message.bytes_truncated = (header.msg_flags & MSG_TRUNC) != 0;
  return message;
}

void DiscardDescriptorMessage(int socket) {
  std::byte byte;
  iovec vector = {.iov_base = &byte, .iov_len = 1};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  while (recvmsg(socket, &header, MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

}  // namespace forestage
