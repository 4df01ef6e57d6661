// Messages of the descriptor socket: how a session's client gives the daemon its shards' open
// descriptors, and gets those of the catalog and the staging board. See
// docs/descriptor_protocol.md.
//
// The socket is SOCK_SEQPACKET, so a message arrives whole. Each message is one of the structs
// below in the machine's byte order (both ends are on one machine). One connection serves one
// session; the client speaks first, and every request gets exactly one reply:
//
//   client                                         daemon
//   BorrowRequest + up to 253 O_PATH descriptors -> (only where an open would do harm)
//                                              <-  BorrowReply + descriptors that are lent
//   ShardBatchRequest + up to 253 descriptors  ->
//                                              <-  DescriptorReply{code, accepted_count}
//   ... until every shard of the OpenRequest is there; then the daemon reads the headers ...
//   DeliveryRequest                            ->
//                                              <-  DescriptorReply + {catalog, board} descriptors
//
// Every request carries the session's token, given out on the gRPC stream of the same process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace forestage {

inline constexpr uint32_t kDescriptorProtocolVersion = 1;
inline constexpr size_t kSessionTokenBytes = 16;
using SessionToken = std::array<uint8_t, kSessionTokenBytes>;

// Messages longer than this are refused.
inline constexpr size_t kDescriptorMessageBytesMax = 1024;

enum class DescriptorRequestKind : uint32_t {
  kShardBatch = 1,
  kDelivery = 2,
  // Since 0.1; a daemon that does not know it answers INVALID_ARGUMENT.
  kBorrow = 3,
};

struct DescriptorRequest {
  uint32_t version = kDescriptorProtocolVersion;
  DescriptorRequestKind kind = DescriptorRequestKind::kShardBatch;
  SessionToken token = {};
  // kShardBatch, kBorrow: index, in the OpenRequest's list, of the shard that the first descriptor
  // of this message belongs to; the others follow in order. Batches come in order without a gap.
  uint32_t first_shard_index = 0;
  // kShardBatch, kBorrow: how many descriptors were sent. Fewer arrive when the daemon is out of
  // them.
  uint32_t descriptor_count = 0;
};

struct DescriptorReply {
  uint32_t version = kDescriptorProtocolVersion;
  // An absl::StatusCode; 0 is OK.
  uint32_t code = 0;
  // kShardBatch: how many shards the daemon holds descriptors of by now. The client goes on from
  // there; a batch of which nothing was taken is an error.
  uint32_t accepted_count = 0;
  // NUL-terminated; says what to do when the code is not OK.
  char message[480] = {};
};

// The answer to kBorrow, unless it is an error.
struct BorrowReply {
  DescriptorReply reply;
  // Bit i % 8 of byte i / 8: the i-th shard of the request is lent. The descriptors of those that
  // are come with this message, in order. The client opens the others itself.
  std::array<uint8_t, 32> lent = {};
};

static_assert(sizeof(DescriptorRequest) == 4 * 4 + kSessionTokenBytes);
static_assert(sizeof(BorrowReply) == sizeof(DescriptorReply) + 32);
static_assert(sizeof(BorrowReply) <= kDescriptorMessageBytesMax);

}  // namespace forestage
