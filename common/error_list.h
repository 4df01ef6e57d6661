// One error that names all.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace forestage {

// OK when all are. One error as it is, with its payloads (errno, header rule); of several the first
// one's code and all messages, a line each.
absl::Status JoinErrors(absl::Span<const absl::Status> statuses);

}  // namespace forestage
