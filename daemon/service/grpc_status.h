// absl::Status -> grpc::Status, in one place.
#pragma once

#include "absl/status/status.h"
#include <grpcpp/support/status.h>

namespace forestage {

// Same code, same message (cut to what fits in a trailer). Codes of the two have the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace forestage
