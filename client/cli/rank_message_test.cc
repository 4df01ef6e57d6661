#include "client/cli/rank_message.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace forestage {
namespace {

template <typename T>
T RoundTrip(const T& message) {
  std::string line = EncodeRankMessage(message);
  EXPECT_EQ(line.back(), '\n');
  line.pop_back();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const absl::StatusOr<RankMessage> decoded = DecodeRankMessage(line);
  EXPECT_OK(decoded);
  return std::get<T>(*decoded);
}

TEST(RankMessageTest, EveryKindSurvivesThePipe) {
  const RankProgress progress = RoundTrip(RankProgress{.done_bytes = 1, .total_bytes = UINT64_MAX});
  EXPECT_EQ(progress.done_bytes, 1u);
  EXPECT_EQ(progress.total_bytes, UINT64_MAX);
  RoundTrip(RankReady());
  EXPECT_EQ(RoundTrip(RankDigest{"0 a%20b ff"}).line, "0 a%20b ff");
  EXPECT_EQ(RoundTrip(RankNote{"two\nlines \"quoted\""}).text, "two\nlines \"quoted\"");
  EXPECT_EQ(RoundTrip(RankStall{"read of a"}).text, "read of a");
}

TEST(RankMessageTest, AResultKeepsEveryFigure) {
  RankResult result;
  result.requested = "auto";
  result.effective = "native";
  result.activated = true;
  result.reason = "why";
  result.bytes = 1;
  result.first_tensor_seconds = 0;
  result.seconds = 2.5;
  result.begun_at_seconds = 7.5;
  result.ended_at_seconds = 10;
  result.major_faults = 3;
  result.verified = true;
  result.mismatched = 4;
  result.error = "what";
  result.checkpoint_bytes = 5;
  result.daemon_read_bytes = 6;
  result.sum = UINT64_MAX;
  const RankResult copy = RoundTrip(result);
  EXPECT_EQ(copy.requested, "auto");
  EXPECT_EQ(copy.effective, "native");
  EXPECT_TRUE(copy.activated);
  EXPECT_EQ(copy.reason, "why");
  EXPECT_EQ(copy.bytes, 1u);
  EXPECT_EQ(copy.first_tensor_seconds, 0);
  EXPECT_EQ(copy.seconds, 2.5);
  EXPECT_EQ(copy.begun_at_seconds, 7.5);
  EXPECT_EQ(copy.ended_at_seconds, 10);
  EXPECT_EQ(copy.major_faults, 3u);
  EXPECT_TRUE(copy.verified);
  EXPECT_EQ(copy.mismatched, 4u);
  EXPECT_EQ(copy.error, "what");
  EXPECT_EQ(copy.checkpoint_bytes, 5u);
  EXPECT_EQ(copy.daemon_read_bytes, 6u);
  EXPECT_EQ(copy.sum, UINT64_MAX);
  EXPECT_EQ(RoundTrip(RankResult()).first_tensor_seconds, std::nullopt);
}

TEST(RankMessageTest, RefusesWhatIsNoMessage) {
  for (const char* line :
       {"", "{", "[]", "{}", R"({"kind":"other"})", R"({"kind":"progress","done":1})",
        R"({"kind":"progress","done":-1,"total":2})", R"({"kind":"note","text":7})",
        R"({"kind":"result"})", "some text that a library printed"}) {
    EXPECT_THAT(DecodeRankMessage(line), StatusIs(absl::StatusCode::kInvalidArgument, testing::_))
        << line;
  }
}

}  // namespace
}  // namespace forestage
