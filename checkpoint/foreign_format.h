// Recognises what people take for a weight file and is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// How much of a file's beginning is looked at.
inline constexpr size_t kForeignFormatBytes = 512;

// What a refused file looks like and what to do, "a git-LFS pointer ...", from its first bytes;
// empty when it looks like nothing that is known.
std::string DescribeForeignFormat(absl::string_view begin, uint64_t file_bytes);

}  // namespace forestage
