// Reads one request of the descriptor socket; the bytes are a client's.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/descriptor_protocol.h"

namespace forestage {

// INVALID_ARGUMENT says what is wrong: length, version, kind, or counts that cannot be.
absl::StatusOr<DescriptorRequest> ParseDescriptorRequest(absl::Span<const std::byte> bytes);

// The message is cut to what fits.
DescriptorReply MakeDescriptorReply(const absl::Status& status, uint32_t accepted_count);

}  // namespace forestage
