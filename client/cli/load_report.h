// What `forestage load` prints: one row a rank and one for the node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/exit_code.h"
#include "client/cli/output.h"
#include "client/cli/rank_message.h"
#include "client/cli/rank_options.h"

namespace forestage {

struct RankOutcome {
  uint32_t rank = 0;
  // Absent when the process ended without one.
  std::optional<RankResult> result;
  // How a process ended that gave no result: "killed by signal 9 (Killed)".
  std::string end;
};

struct LoadReport {
  std::vector<RankOutcome> ranks;
  Policy requested = Policy::kAuto;
  bool verify = false;
  // From the start of the first rank to the end of the last.
  double seconds = 0;

  // Of the union of what the ranks asked for: the checkpoint's files.
  uint64_t bytes_needed() const;
  // From before the first rank looked at a file to after the last rank's last slice: without the
  // start of the processes and their end. nullopt when no rank told.
  std::optional<double> load_seconds() const;
  // What the daemon read from storage, as the rank heard that heard most.
  uint64_t bytes_read() const;
};

// Why a rank did not load everything; empty when it did.
std::string RankError(const RankOutcome& outcome);

// The documents of docs/cli.md.
Json LoadJson(const LoadReport& report);
std::string LoadText(const LoadReport& report);

// kMismatch when any rank got wrong bytes, else kFailed when any rank did not get all, else kOk.
ExitCode LoadExitCode(const LoadReport& report);

}  // namespace forestage
