// Whether io_uring can be used, and what to do where it cannot: one place for the daemon's reader
// and for the tools that explain it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace forestage {

// How every error of this file begins, so that a reason can be known as one.
inline constexpr char kIoUringUnavailable[] = "io_uring is not available";

// Whether this process may use io_uring for what the daemon's reader does, found by using it: makes
// a ring, asks it for its operations, enters it. Reads no storage; takes less than a millisecond.
// The error names the call that was refused, the likely cause and the fix.
absl::Status CheckIoUring();

// For the ring of a reader: has its kernel every feature and operation that the reader needs?
absl::Status CheckIoUringOperations(int ring_fd, uint32_t features);

// The error of a refused call. Requires: error_number != 0.
absl::Status IoUringRefusedStatus(int error_number, absl::string_view call);

}  // namespace forestage
