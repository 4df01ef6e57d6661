// What a rank process tells `forestage load`: one JSON object a line, through a pipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace forestage {

// The descriptor on which a rank process finds the pipe's writing end.
inline constexpr int kRankMessageDescriptor = 3;
// Where a rank that is to begin with the others finds a pipe that ends when all may.
inline constexpr int kRankGateDescriptor = 4;

// The first one says that the rank has opened its session.
struct RankProgress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
};

// A finished line for the digest file.
struct RankDigest {
  std::string line;
};

// The rank's process is up and waits to begin; see RankOptions::together.
struct RankReady {};

// For people: something that is no failure, or what a failure is about.
struct RankNote {
  std::string text;
};

// It has waited long for a file: what for, for people.
struct RankStall {
  std::string text;
};

// The last message of a rank that was not killed.
struct RankResult {
  std::string requested;
  // Empty when the checkpoint could not be opened.
  std::string effective;
  bool activated = false;
  std::string reason;
  // Of all slices that were loaded.
  uint64_t bytes = 0;
  // Absent when it loaded no byte.
  std::optional<double> first_tensor_seconds;
  double seconds = 0;
  // On the machine's monotonic clock, so that ranks can be compared: before this rank looked at any
  // file, and after its last slice.
  double begun_at_seconds = 0;
  double ended_at_seconds = 0;
  uint64_t major_faults = 0;
  // Every planned slice was compared with the file, and none differs.
  bool verified = false;
  uint64_t mismatched = 0;
  // Empty unless the load failed.
  std::string error;

  // Of the checkpoint's files.
  uint64_t checkpoint_bytes = 0;
  // What the daemon had read from storage when this rank was done, or when it last said so before
  // it went; 0 without one.
  uint64_t daemon_read_bytes = 0;
  // Sum over all words of all slices; proves that every byte was touched. 0 where slices were
  // copied.
  uint64_t sum = 0;
};

using RankMessage =
    std::variant<RankReady, RankProgress, RankDigest, RankNote, RankStall, RankResult>;

// One line with its newline.
std::string EncodeRankMessage(const RankMessage& message);
// Without the newline. INVALID_ARGUMENT for anything that EncodeRankMessage does not make.
absl::StatusOr<RankMessage> DecodeRankMessage(absl::string_view line);

}  // namespace forestage
