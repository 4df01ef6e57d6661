// Counts, byte counts and times as people read and write them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

// Three significant digits and a binary unit: "512 B", "1.50 GiB", "16.0 MiB".
std::string FormatBytes(uint64_t bytes);

// "1 shard", "2 shards".
std::string FormatCount(uint64_t count, absl::string_view singular);

// "0.123 s", "12.3 s", "5 min 03 s", "2 h 05 min". Negative values count as 0.
std::string FormatSeconds(double seconds);

// "1GiB", "1.5 GB", "4096", "16m": a number and an optional unit. KiB, MiB, GiB, TiB and the single
// letters K, M, G, T are powers of 1024; KB, MB, GB, TB powers of 1000; case does not matter.
// INVALID_ARGUMENT names the text and what is allowed.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

}  // namespace forestage
