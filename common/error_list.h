// One error that names all.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace forestage {

// An error names so many, and counts the others.
inline constexpr size_t kErrorsJoinedMax = 1000;

// OK when all are. One error as it is, with its payloads (errno, header rule); of several the first
// one's code and all messages, a line each, up to kErrorsJoinedMax.
absl::Status JoinErrors(absl::Span<const absl::Status> statuses);

// Such a text in one line, for logs and reasons: "; " in place of each line break.
std::string OneLine(absl::string_view text);

}  // namespace forestage
