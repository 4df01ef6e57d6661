// The numbers in names such as model-00003-of-00017.safetensors.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

#include "checkpoint/offender_list.h"

namespace forestage {

// What is wrong with the numbers of names.
struct NumberingFaults {
  bool empty() const { return missing.empty() && out_of_count.empty(); }

  // Names of a numbered set that are not there.
  OffenderList missing;
  // Names that are there, with a number that their own total leaves no place for.
  OffenderList out_of_count;
};

// Of all sets that `names` belong to. A set counts from 1 to its total; one that holds number 0
// counts from 0 to its total - 1. Names without such numbers belong to no set.
NumberingFaults CheckNumbering(absl::Span<const std::string> names);

}  // namespace forestage
