// The group that the setting `socket-group` names.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include <sys/types.h>

namespace forestage {

// A name in the system's group database, or a number; absent for the empty text. NOT_FOUND names
// the setting and says what to do. May block on the group database.
absl::StatusOr<std::optional<gid_t>> ResolveSocketGroup(const std::string& group);

}  // namespace forestage
