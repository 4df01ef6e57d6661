// The daemon's promises over thousands of random orders of events; see daemon_model.h and the
// invariants in docs/semantics.md.
//
// FORESTAGE_MODEL_SEED=N begins with that seed, FORESTAGE_MODEL_ROUNDS=N plays so many: a run is
// repeated with its seed and one round.
#include "tests/model/daemon_model.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"

namespace forestage {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

using Mistake = DaemonModel::Mistake;

constexpr uint64_t kRounds = 1000;
constexpr uint64_t kRoundsForCoverage = 300;
constexpr uint64_t kRoundsTwice = 40;
// Within so many runs a mistake must be found.
constexpr uint64_t kRoundsForMistake = 400;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class DaemonModelTest : public ::testing::Test {
 protected:
  DaemonModelTest() { spdlog::set_level(spdlog::level::off); }

  DaemonModel::Outcome Play(uint64_t seed, Mistake mistake = Mistake::kNone) {
    DaemonModel model({.seed = seed, .mistake = mistake}, world_, coverage_);
    return model.Play();
  }
  // The first violation within some rounds.
  std::string ViolationBy(Mistake mistake) {
    for (uint64_t seed = 1; seed <= kRoundsForMistake; ++seed) {
      const DaemonModel::Outcome outcome = Play(seed, mistake);
      if (!outcome.violation.empty()) return outcome.violation;
    }
    return "";
  }

  DaemonModel::World world_;
  DaemonModel::Coverage coverage_;
};

TEST_F(DaemonModelTest, InvariantsHoldInRandomInterleavings) {
  const uint64_t first = FromEnvironment("FORESTAGE_MODEL_SEED", std::random_device()());
  const uint64_t rounds = FromEnvironment("FORESTAGE_MODEL_ROUNDS", kRounds);
  std::printf("FORESTAGE_MODEL_SEED=%llu FORESTAGE_MODEL_ROUNDS=%llu\n",
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(rounds));
  uint64_t events = 0;
  for (uint64_t i = 0; i < rounds; ++i) {
    const size_t descriptors = OpenDescriptors();
    const DaemonModel::Outcome outcome = Play(first + i);
    events += outcome.trace.size();
    ASSERT_EQ(outcome.violation, "")
        << "repeat with FORESTAGE_MODEL_SEED=" << first + i << " FORESTAGE_MODEL_ROUNDS=1\n"
        << absl::StrJoin(outcome.trace, "\n");
    ASSERT_EQ(OpenDescriptors(), descriptors)
        << "descriptors are left open by FORESTAGE_MODEL_SEED=" << first + i;
  }
  std::printf("%llu rounds, %llu lines of trace\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(events));
  for (const auto& [what, count] : coverage_) {
    std::printf("  %-40s %llu\n", what.c_str(), static_cast<unsigned long long>(count));
  }
}

// A model that never comes to what it is for would hold for ever.
TEST_F(DaemonModelTest, ReachesWhatItIsFor) {
  for (uint64_t seed = 1; seed <= kRoundsForCoverage; ++seed) {
    ASSERT_EQ(Play(seed).violation, "") << "seed " << seed;
  }
  for (const std::string what : {"decision requested",
                                 "decision chosen_by_daemon",
                                 "decision decided_by_group",
                                 "decision native_in_group",
                                 "decision signature_mismatch",
                                 "decision group_incomplete",
                                 "decision not_enough_memory",
                                 "delivered",
                                 "delivery refused",
                                 "demand",
                                 "drained",
                                 "restarted",
                                 "exit seen",
                                 "file changed",
                                 "process died",
                                 "replaced",
                                 "ended CANCELLED",
                                 "ended DEADLINE_EXCEEDED",
                                 "ended INVALID_ARGUMENT",
                                 "ended OK",
                                 "ended UNAVAILABLE",
                                 "open OK",
                                 "open ALREADY_EXISTS",
                                 "open INVALID_ARGUMENT",
                                 "open RESOURCE_EXHAUSTED",
                                 "open UNAVAILABLE",
                                 "read OK",
                                 "read UNAVAILABLE",
                                 "read OUT_OF_RANGE",
                                 "shared",
                                 "told complete",
                                 "told progress",
                                 "used",
                                 "used later",
                                 "read by itself",
                                 "wait ended",
                                 "woken",
                                 "stopped halfway"}) {
    EXPECT_GT(coverage_[what], 0u) << what;
  }
}

TEST_F(DaemonModelTest, OneSeedIsOneRun) {
  for (uint64_t seed = 1; seed <= kRoundsTwice; ++seed) {
    EXPECT_EQ(Play(seed).trace, Play(seed).trace) << "seed " << seed;
  }
}

// The checks themselves: each of these is a mistake in what the daemon stands on.

TEST_F(DaemonModelTest, FindsADemandThatOutlivesItsSession) {
  EXPECT_THAT(ViolationBy(Mistake::kCheckpointForgetsToRemoveSessions),
              AnyOf(HasSubstr("a demand outlives its session"), HasSubstr("is read for")));
}

TEST_F(DaemonModelTest, FindsBytesThatWereNotVerified) {
  EXPECT_THAT(ViolationBy(Mistake::kReaderLies), HasSubstr("was not verified"));
}

TEST_F(DaemonModelTest, FindsALaneThatIsNotWoken) {
  EXPECT_THAT(ViolationBy(Mistake::kLaneMissesItsWake), HasSubstr("demanded and never read"));
}

TEST_F(DaemonModelTest, FindsACheckpointThatNobodyHolds) {
  EXPECT_THAT(ViolationBy(Mistake::kSomebodyKeepsACheckpoint), HasSubstr("held by nobody"));
}

TEST_F(DaemonModelTest, FindsAWaiterThatIsNotWoken) {
  EXPECT_THAT(ViolationBy(Mistake::kWaiterLooksBeforeItCounts), HasSubstr("sleeps for ever"));
}

}  // namespace
}  // namespace forestage
