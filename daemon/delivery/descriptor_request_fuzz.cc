// Any bytes on the descriptor socket: a request that is taken keeps its bounds, one that is not has
// a message that fits the reply.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

#include "common/check.h"
#include "common/descriptor_passing.h"
#include "daemon/delivery/descriptor_request.h"
#include "daemon/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace forestage;  // NOLINT: a fuzz target is a program of its own
  const auto request =
      ParseDescriptorRequest(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(input), size));
  const DescriptorReply reply = MakeDescriptorReply(request.status(), 0);
  CHECK(reply.message[sizeof(reply.message) - 1] == '\0');
  if (!request.ok()) {
    CHECK(std::strlen(reply.message) > 0);
  } else if (request->kind == DescriptorRequestKind::kShardBatch) {
    CHECK(request->descriptor_count >= 1 && request->descriptor_count <= kDescriptorsPerMessageMax);
    CHECK(request->first_shard_index < kShardsPerSessionMax);
  }
  return 0;
}
