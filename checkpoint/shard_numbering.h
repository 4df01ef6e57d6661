// The numbers in names such as model-00003-of-00017.safetensors.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "checkpoint/offender_list.h"

namespace forestage {

// Every name of a numbered set that is not there, for all sets that `names` belong to. A set counts
// from 1 to its total; one that holds number 0 counts from 0 to its total - 1. Names without such
// numbers belong to no set.
OffenderList MissingShards(absl::Span<const std::string> names);

}  // namespace forestage
