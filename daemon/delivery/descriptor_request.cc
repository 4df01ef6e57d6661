#include "daemon/delivery/descriptor_request.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/descriptor_passing.h"
#include "daemon/limits.h"

namespace forestage {

absl::StatusOr<DescriptorRequest> ParseDescriptorRequest(absl::Span<const std::byte> bytes) {
  if (bytes.size() != sizeof(DescriptorRequest)) {
    return absl::InvalidArgumentError(absl::StrCat("a request has ", sizeof(DescriptorRequest),
                                                   " bytes; this one has ", bytes.size()));
  }
  DescriptorRequest request;
  std::memcpy(&request, bytes.data(), sizeof(request));
  if (request.version != kDescriptorProtocolVersion) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor protocol version ", request.version,
                                                   " is not served; ", kDescriptorProtocolVersion,
                                                   " is"));
  }
  // Compared as a number: an enum of foreign bytes may hold any.
  const auto kind = static_cast<uint32_t>(request.kind);
  if (kind != static_cast<uint32_t>(DescriptorRequestKind::kShardBatch) &&
      kind != static_cast<uint32_t>(DescriptorRequestKind::kDelivery) &&
      kind != static_cast<uint32_t>(DescriptorRequestKind::kBorrow)) {
    return absl::InvalidArgumentError(absl::StrCat("request kind ", kind, " is unknown"));
  }
  if (request.kind != DescriptorRequestKind::kDelivery &&
      (request.descriptor_count == 0 || request.descriptor_count > kDescriptorsPerMessageMax ||
       request.first_shard_index >= kShardsPerSessionMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", request.descriptor_count, " descriptors from shard ",
                     request.first_shard_index, " on; 1 to ", kDescriptorsPerMessageMax,
                     " are allowed, below shard ", kShardsPerSessionMax));
  }
  return request;
}

DescriptorReply MakeDescriptorReply(const absl::Status& status, uint32_t accepted_count) {
  DescriptorReply reply;
  reply.code = static_cast<uint32_t>(status.code());
  reply.accepted_count = accepted_count;
  const absl::string_view message = status.message();
  const size_t length = std::min(message.size(), sizeof(reply.message) - 1);
  std::copy_n(message.begin(), length, reply.message);
  return reply;
}

}  // namespace forestage
