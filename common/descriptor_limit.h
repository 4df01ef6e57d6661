// The limit on open files of this process.
#pragma once

#include <cstdint>

namespace forestage {

// Raises the soft limit on open files by `more`, towards the hard one, and as far as that allows.
// Failing is no error: what opens a file will say so if it matters. Not for two threads at once.
void RaiseDescriptorLimit(uint64_t more);

}  // namespace forestage
