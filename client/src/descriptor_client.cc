#include "client/src/descriptor_client.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/socket_connect.h"
#include <sys/socket.h>

#include "common/descriptor_passing.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

std::vector<int> DescriptorsOf(absl::Span<const OfferedShard> shards) {
  std::vector<int> descriptors;
  descriptors.reserve(shards.size());
  for (const OfferedShard& shard : shards) descriptors.push_back(shard.fd);
  return descriptors;
}

}  // namespace

absl::StatusOr<DescriptorClient> DescriptorClient::Connect(const DaemonSocket& daemon_socket,
                                                           const SessionToken& token,
                                                           absl::Time deadline,
                                                           std::function<absl::Status()> is_alive) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnixSocket(daemon_socket, SOCK_SEQPACKET, deadline));
  return DescriptorClient(std::move(socket), token, std::move(is_alive));
}

absl::StatusOr<DescriptorMessage> DescriptorClient::Receive(absl::Time deadline) {
  while (true) {
    const absl::Time look = is_alive_ == nullptr ? deadline : absl::Now() + kAnswerPatience;
    absl::StatusOr<DescriptorMessage> message = ReceiveDescriptorMessage(
        socket_.get(), kDescriptorMessageBytesMax, std::min(deadline, look));
    if (!absl::IsDeadlineExceeded(message.status()) || look >= deadline) return message;
    RETURN_IF_ERROR(is_alive_());
  }
}

absl::StatusOr<DescriptorClient::ReceivedReply> DescriptorClient::Exchange(
    const DescriptorRequest& request, absl::Span<const int> descriptors, absl::Time deadline) {
  RETURN_IF_ERROR(SendDescriptorMessage(
      socket_.get(),
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&request), sizeof(request)),
      descriptors, deadline));
  ASSIGN_OR_RETURN(DescriptorMessage message, Receive(deadline));
  const bool lends =
      request.kind == DescriptorRequestKind::kBorrow && message.bytes.size() == sizeof(BorrowReply);
  if ((!lends && message.bytes.size() != sizeof(DescriptorReply)) || message.bytes_truncated) {
    return absl::InternalError(
        absl::StrCat("a reply of ", message.bytes.size(), " bytes on the descriptor socket"));
  }
  ReceivedReply received;
  std::memcpy(&received.reply, message.bytes.data(), sizeof(DescriptorReply));
  if (lends) {
    std::memcpy(received.lent.data(), message.bytes.data() + offsetof(BorrowReply, lent),
                received.lent.size());
  }
  received.descriptors = std::move(message.descriptors);
  received.descriptors_truncated = message.descriptors_truncated;
  const DescriptorReply& reply = received.reply;
  if (reply.version != kDescriptorProtocolVersion) {
    return absl::InternalError(absl::StrCat("the descriptor socket speaks version ", reply.version,
                                            ", this client speaks ", kDescriptorProtocolVersion));
  }
  if (reply.code != 0) {
    const size_t length = strnlen(reply.message, sizeof(reply.message));
    return absl::Status(static_cast<absl::StatusCode>(reply.code),
                        absl::string_view(reply.message, length));
  }
  return received;
}

absl::StatusOr<std::vector<UniqueFd>> DescriptorClient::Borrow(
    absl::Span<const OfferedShard> shards, absl::Time deadline) {
  std::vector<UniqueFd> lent(shards.size());
  for (size_t first = 0; first < shards.size(); first += kDescriptorsPerMessageMax) {
    const auto batch = shards.subspan(first, kDescriptorsPerMessageMax);
    const DescriptorRequest request = {.kind = DescriptorRequestKind::kBorrow,
                                       .token = token_,
                                       .first_shard_index = static_cast<uint32_t>(first),
                                       .descriptor_count = static_cast<uint32_t>(batch.size())};
    ASSIGN_OR_RETURN(ReceivedReply received, Exchange(request, DescriptorsOf(batch), deadline));
    // Where this process could take no more descriptors, the last ones are missing.
    size_t taken = 0;
    for (size_t i = 0; i < batch.size() && taken < received.descriptors.size(); ++i) {
      if ((received.lent[i / 8] >> i % 8 & 1) == 0) continue;
      lent[first + i] = std::move(received.descriptors[taken++]);
    }
  }
  return lent;
}

absl::Status DescriptorClient::SendShards(absl::Span<const OfferedShard> shards,
                                          absl::Time deadline) {
  for (size_t sent = 0; sent < shards.size();) {
    const size_t batch_end = std::min(shards.size(), sent + kDescriptorsPerMessageMax);
    const std::vector<int> batch = DescriptorsOf(shards.subspan(sent, batch_end - sent));
    const DescriptorRequest request = {.kind = DescriptorRequestKind::kShardBatch,
                                       .token = token_,
                                       .first_shard_index = static_cast<uint32_t>(sent),
                                       .descriptor_count = static_cast<uint32_t>(batch.size())};
    ASSIGN_OR_RETURN(const ReceivedReply received, Exchange(request, batch, deadline));
    const size_t accepted = received.reply.accepted_count;
    if (accepted <= sent) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the daemon took no more than ", sent, " of ", shards.size(),
                       " descriptors: raise its limit on open files (LimitNOFILE=)"));
    }
    if (accepted > batch_end) {
      return absl::InternalError(
          absl::StrCat("the daemon accepted ", accepted, " descriptors of ", batch_end, " sent"));
    }
    sent = accepted;
  }
  return absl::OkStatus();
}

absl::StatusOr<DeliveredDescriptors> DescriptorClient::Fetch(absl::Time deadline) {
  const DescriptorRequest request = {.kind = DescriptorRequestKind::kDelivery, .token = token_};
  ASSIGN_OR_RETURN(ReceivedReply received, Exchange(request, {}, deadline));
  if (received.descriptors_truncated) {
    return absl::ResourceExhaustedError(
        "this process may open no more files (RLIMIT_NOFILE); raise its limit");
  }
  if (received.descriptors.size() != 2) {
    return absl::InternalError(absl::StrCat("the daemon delivered ", received.descriptors.size(),
                                            " descriptors instead of 2"));
  }
  return DeliveredDescriptors{.catalog = std::move(received.descriptors[0]),
                              .board = std::move(received.descriptors[1])};
}

}  // namespace forestage
