// What one rank process of `forestage load` is told: as values, and as the arguments of the hidden
// command `rank` that it is started with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/global_options.h"

#include "forestage/decision.h"

namespace forestage {

enum class Share {
  kAll,   // every rank takes every tensor whole
  kRows,  // every rank takes its part of dimension 0
};
absl::string_view ShareName(Share share);

// nullopt for any other text.
std::optional<Share> ShareFromName(absl::string_view name);
std::optional<Policy> PolicyFromName(absl::string_view name);
std::optional<Agreement> AgreementFromName(absl::string_view name);

struct RankOptions {
  std::string directory;
  uint32_t rank = 0;
  uint32_t ranks = 1;
  Share share = Share::kAll;
  bool verify = false;
  bool digests = false;
  // Copy every slice into memory of the rank's own, as an engine's tensors would be.
  bool own = false;
  // Begin when every rank's process is up.
  bool together = false;
  Policy policy = Policy::kAuto;
  Agreement agreement = Agreement::kEager;
  std::string group_name;
  std::string launch_nonce;
};

// Name of the hidden command.
inline constexpr char kRankCommandName[] = "rank";

// The command's name and everything that gives the same options when parsed.
std::vector<std::string> RankArguments(const GlobalOptions& global, const RankOptions& options);

}  // namespace forestage
