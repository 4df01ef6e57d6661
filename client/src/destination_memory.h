// How memory that a slice is copied into gets its pages.
#pragma once

#include <cstddef>

#include "absl/types/span.h"

namespace forestage {

// Asks for huge pages in memory that is about to be written whole: to clear one costs a fifth of
// what the 512 small ones cost, and most of a copy into fresh memory is that. Nothing is asked for
// memory that is in use already, nor for less than kHugeDestinationBytesMin, and the advice covers
// no page but those that hold the destination. Whatever the system answers, nothing but time
// changes.
inline constexpr size_t kHugeDestinationBytesMin = 2 * 1024 * 1024;
void AdviseHugePages(absl::Span<std::byte> destination);

// Lets the system give fresh memory its pages at once, rather than one by one as they are written.
// As above: nothing but time changes.
void GivePages(absl::Span<std::byte> destination);

}  // namespace forestage
