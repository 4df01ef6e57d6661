// What else is wrong with a checkpoint that is refused already.
#pragma once

#include "absl/types/span.h"

#include "checkpoint/file_selection.h"
#include "checkpoint/offender_list.h"

namespace forestage {

// Opens these files, reads their headers in a few threads, and adds what is wrong with each, in the
// order of the files. For errors only: so that somebody who mends one fault does not meet the next
// after it. Blocks on the file system.
void SurveyShards(absl::Span<const SelectedShard> shards, OffenderList* faults);

}  // namespace forestage
