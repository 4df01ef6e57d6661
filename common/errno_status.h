// errno -> absl::Status, in one place.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace forestage {

// A status whose message is `what`: followed by the errno's text and symbolic name, and whose code
// tells the caller what to do (NOT_FOUND for ENOENT, PERMISSION_DENIED for EACCES and EPERM, ...).
// Input/output errors of a device or a file system (EIO, ESTALE, ...) are UNAVAILABLE. The number
// is kept as a payload; see ErrnoOf.
// Requires: error_number != 0.
absl::Status ErrnoStatus(int error_number, absl::string_view what);

// The errno that a status made by ErrnoStatus carries, else 0.
int ErrnoOf(const absl::Status& status);

}  // namespace forestage
