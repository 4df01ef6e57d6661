#include "client/cli/load_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/byte_format.h"
#include "client/cli/text_table.h"

namespace forestage {
namespace {

Json RankJson(const LoadReport& report, const RankOutcome& outcome) {
  // A rank that was killed has told nothing.
  const bool told = outcome.result.has_value();
  const RankResult result = outcome.result.value_or(RankResult());
  const bool opened = !result.effective.empty();
  Json rank;
  rank["rank"] = outcome.rank;
  rank["requested"] = std::string(PolicyName(report.requested));
  rank["effective"] = opened ? Json(result.effective) : Json();
  rank["activated"] = result.activated;
  rank["reason"] = opened ? Json(result.reason) : Json();
  rank["bytes"] = told ? Json(result.bytes) : Json();
  rank["first_tensor_seconds"] =
      result.first_tensor_seconds.has_value() ? Json(*result.first_tensor_seconds) : Json();
  rank["seconds"] = told ? Json(result.seconds) : Json();
  rank["major_faults"] = told ? Json(result.major_faults) : Json();
  rank["verified"] = result.verified;
  rank["mismatched"] = result.mismatched;
  if (const std::string error = RankError(outcome); !error.empty()) rank["error"] = error;
  return rank;
}

std::string VerifiedText(const LoadReport& report, const RankOutcome& outcome) {
  if (const std::string error = RankError(outcome); !error.empty()) return "FAILED";
  if (!report.verify) return "not asked";
  if (outcome.result->mismatched > 0)
    return absl::StrCat(outcome.result->mismatched, " slices DIFFER");
  return outcome.result->verified ? "every byte" : "no";
}

}  // namespace

uint64_t LoadReport::bytes_needed() const {
  uint64_t bytes = 0;
  for (const RankOutcome& outcome : ranks) {
    if (outcome.result.has_value()) bytes = std::max(bytes, outcome.result->checkpoint_bytes);
  }
  return bytes;
}

uint64_t LoadReport::bytes_read() const {
  uint64_t bytes = 0;
  for (const RankOutcome& outcome : ranks) {
    if (outcome.result.has_value()) bytes = std::max(bytes, outcome.result->daemon_read_bytes);
  }
  return bytes;
}

std::optional<double> LoadReport::load_seconds() const {
  std::optional<double> begun;
  double ended = 0;
  for (const RankOutcome& outcome : ranks) {
    if (!outcome.result.has_value()) continue;
    begun = std::min(begun.value_or(outcome.result->begun_at_seconds),
                     outcome.result->begun_at_seconds);
    ended = std::max(ended, outcome.result->ended_at_seconds);
  }
  if (!begun.has_value()) return std::nullopt;
  return ended - *begun;
}

std::string RankError(const RankOutcome& outcome) {
  return outcome.result.has_value() ? outcome.result->error : outcome.end;
}

Json LoadJson(const LoadReport& report) {
  Json document;
  document["ranks"] = Json::array();
  for (const RankOutcome& outcome : report.ranks)
    document["ranks"].push_back(RankJson(report, outcome));
  document["node"]["bytes_needed"] = report.bytes_needed();
  document["node"]["bytes_read"] = report.bytes_read();
  document["node"]["seconds"] = report.seconds;
  const std::optional<double> load_seconds = report.load_seconds();
  document["node"]["load_seconds"] = load_seconds.has_value() ? Json(*load_seconds) : Json();
  return document;
}

std::string LoadText(const LoadReport& report) {
  using Align = TextTable::Align;
  TextTable table({{"RANK", Align::kRight},
                   {"POLICY"},
                   {"BYTES", Align::kRight},
                   {"FIRST TENSOR", Align::kRight},
                   {"SECONDS", Align::kRight},
                   {"MAJOR FAULTS", Align::kRight},
                   {"VERIFIED"},
                   {"REASON"}});
  for (const RankOutcome& outcome : report.ranks) {
    const std::string error = RankError(outcome);
    if (!outcome.result.has_value()) {
      table.AddRow({absl::StrCat(outcome.rank), "-", "-", "-", "-", "-", "FAILED", error});
      continue;
    }
    const RankResult& result = *outcome.result;
    table.AddRow({absl::StrCat(outcome.rank), result.effective.empty() ? "-" : result.effective,
                  FormatBytes(result.bytes),
                  result.first_tensor_seconds.has_value()
                      ? FormatSeconds(*result.first_tensor_seconds)
                      : "-",
                  FormatSeconds(result.seconds), absl::StrCat(result.major_faults),
                  VerifiedText(report, outcome), error.empty() ? result.reason : error});
  }
  return absl::StrCat(table.ToString(), "\nnode: ", FormatBytes(report.bytes_needed()), " needed, ",
                      FormatBytes(report.bytes_read()), " read from storage by the daemon, ",
                      FormatSeconds(report.seconds), "\n");
}

ExitCode LoadExitCode(const LoadReport& report) {
  bool failed = false;
  for (const RankOutcome& outcome : report.ranks) {
    if (outcome.result.has_value() && outcome.result->mismatched > 0) return ExitCode::kMismatch;
    if (!RankError(outcome).empty()) failed = true;
    if (report.verify && !(outcome.result.has_value() && outcome.result->verified)) failed = true;
  }
  return failed ? ExitCode::kFailed : ExitCode::kOk;
}

}  // namespace forestage
