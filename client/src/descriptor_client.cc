#include "client/src/descriptor_client.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/src/socket_connect.h"
#include <sys/socket.h>

#include "common/descriptor_passing.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

struct ReceivedReply {
  DescriptorReply reply;
  std::vector<UniqueFd> descriptors;
  bool descriptors_truncated = false;
};

absl::Status Exchange(int socket, const DescriptorRequest& request,
                      absl::Span<const int> descriptors, absl::Time deadline,
                      ReceivedReply& received) {
  RETURN_IF_ERROR(SendDescriptorMessage(
      socket, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&request), sizeof(request)),
      descriptors, deadline));
  ASSIGN_OR_RETURN(DescriptorMessage message,
                   ReceiveDescriptorMessage(socket, kDescriptorMessageBytesMax, deadline));
  if (message.bytes.size() != sizeof(DescriptorReply) || message.bytes_truncated) {
    return absl::InternalError(
        absl::StrCat("a reply of ", message.bytes.size(), " bytes on the descriptor socket"));
  }
  std::memcpy(&received.reply, message.bytes.data(), sizeof(DescriptorReply));
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DescriptorClient> DescriptorClient::Connect(const std::string& socket_path,
                                                           const SessionToken& token,
                                                           absl::Time deadline) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnixSocket(socket_path, SOCK_SEQPACKET, deadline));
  return DescriptorClient(std::move(socket), token);
}

absl::Status DescriptorClient::SendShards(absl::Span<const OfferedShard> shards,
                                          absl::Time deadline) {
  for (size_t sent = 0; sent < shards.size();) {
    std::vector<int> batch;
    const size_t batch_end = std::min(shards.size(), sent + kDescriptorsPerMessageMax);
    for (size_t i = sent; i < batch_end; ++i) batch.push_back(shards[i].fd);
    const DescriptorRequest request = {.kind = DescriptorRequestKind::kShardBatch,
                                       .token = token_,
                                       .first_shard_index = static_cast<uint32_t>(sent),
                                       .descriptor_count = static_cast<uint32_t>(batch.size())};
    ReceivedReply received;
    RETURN_IF_ERROR(Exchange(socket_.get(), request, batch, deadline, received));
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
  ReceivedReply received;
  RETURN_IF_ERROR(Exchange(socket_.get(), request, {}, deadline, received));
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
