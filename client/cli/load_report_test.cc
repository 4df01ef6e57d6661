#include "client/cli/load_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankOutcome Loaded(uint32_t rank) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.result.emplace();
  outcome.result->requested = "auto";
  outcome.result->effective = "rank_striped_read_ahead";
  outcome.result->activated = true;
  outcome.result->bytes = 100;
  outcome.result->first_tensor_seconds = 0.5;
  outcome.result->seconds = 2;
  outcome.result->major_faults = 3;
  outcome.result->verified = true;
  outcome.result->checkpoint_bytes = 1000;
  outcome.result->daemon_read_bytes = 900 + rank;
  outcome.end = "ended with exit code 0";
  return outcome;
}

RankOutcome Killed(uint32_t rank) {
  RankOutcome outcome;
  outcome.rank = rank;
  outcome.end = "killed by signal 9 (Killed)";
  return outcome;
}

LoadReport Report(std::vector<RankOutcome> ranks) {
  LoadReport report;
  report.ranks = std::move(ranks);
  report.verify = true;
  report.seconds = 2.25;
  return report;
}

std::vector<std::string> Keys(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

TEST(LoadReportTest, JsonHasTheDocumentedKeysInOrder) {
  const Json document = LoadJson(Report({Loaded(0), Loaded(1)}));
  EXPECT_THAT(Keys(document), ElementsAre("ranks", "node"));
  EXPECT_THAT(Keys(document["node"]),
              ElementsAre("bytes_needed", "bytes_read", "seconds", "load_seconds"));
  EXPECT_THAT(
      Keys(document["ranks"][0]),
      ElementsAre("rank", "requested", "effective", "activated", "reason", "bytes",
                  "first_tensor_seconds", "seconds", "major_faults", "verified", "mismatched"));
  EXPECT_EQ(document["node"]["bytes_needed"], 1000);
  EXPECT_EQ(document["node"]["bytes_read"], 901);
  EXPECT_EQ(document["ranks"][1]["rank"], 1);
  EXPECT_EQ(document["ranks"][1]["verified"], true);
  EXPECT_EQ(document["ranks"][1]["effective"], "rank_striped_read_ahead");
}

TEST(LoadReportTest, AKilledRankIsReportedAndTheOthersCount) {
  const LoadReport report = Report({Loaded(0), Killed(1)});
  const Json rank = LoadJson(report)["ranks"][1];
  EXPECT_EQ(rank["error"], "killed by signal 9 (Killed)");
  EXPECT_TRUE(rank["effective"].is_null());
  EXPECT_TRUE(rank["bytes"].is_null());
  EXPECT_EQ(rank["verified"], false);
  EXPECT_EQ(LoadExitCode(report), ExitCode::kFailed);
  EXPECT_THAT(LoadText(report), HasSubstr("killed by signal 9"));
}

TEST(LoadReportTest, LoadingLastsFromTheFirstBeginToTheLastEnd) {
  RankOutcome early = Loaded(0);
  early.result->begun_at_seconds = 10;
  early.result->ended_at_seconds = 12;
  RankOutcome late = Loaded(1);
  late.result->begun_at_seconds = 11;
  late.result->ended_at_seconds = 14;
  EXPECT_EQ(LoadJson(Report({late, early, Killed(2)}))["node"]["load_seconds"], 4);
  EXPECT_TRUE(LoadJson(Report({Killed(0)}))["node"]["load_seconds"].is_null());
}

TEST(LoadReportTest, ARankWithoutAByteHasNoFirstTensor) {
  RankOutcome empty = Loaded(0);
  empty.result->bytes = 0;
  empty.result->first_tensor_seconds.reset();
  EXPECT_TRUE(LoadJson(Report({empty}))["ranks"][0]["first_tensor_seconds"].is_null());
  EXPECT_THAT(LoadText(Report({empty})), HasSubstr("  0 B             -  "));
  EXPECT_EQ(LoadExitCode(Report({empty})), ExitCode::kOk);
}

TEST(LoadReportTest, IsOkOnlyWhenEveryRankHasEveryByteRight) {
  EXPECT_EQ(LoadExitCode(Report({Loaded(0), Loaded(1)})), ExitCode::kOk);
  RankOutcome unverified = Loaded(1);
  unverified.result->verified = false;
  EXPECT_EQ(LoadExitCode(Report({Loaded(0), unverified})), ExitCode::kFailed);
  LoadReport not_asked = Report({Loaded(0), unverified});
  not_asked.verify = false;
  EXPECT_EQ(LoadExitCode(not_asked), ExitCode::kOk);
  RankOutcome failed = Loaded(1);
  failed.result->error = "cannot read";
  EXPECT_EQ(LoadExitCode(Report({Loaded(0), failed})), ExitCode::kFailed);
}

TEST(LoadReportTest, WrongBytesHaveTheirOwnExitCode) {
  RankOutcome wrong = Loaded(1);
  wrong.result->verified = false;
  wrong.result->mismatched = 2;
  EXPECT_EQ(LoadExitCode(Report({Killed(0), wrong})), ExitCode::kMismatch);
  EXPECT_THAT(LoadText(Report({wrong})), HasSubstr("2 slices DIFFER"));
}

}  // namespace
}  // namespace forestage
