// The daemon's promises over thousands of random orders of events; see daemon_model.h and the
// invariants in docs/semantics.md.
//
// FORESTAGE_MODEL_SEED=N begins with that seed, FORESTAGE_MODEL_ROUNDS=N plays so many: a run is
// repeated with its seed and one round. FORESTAGE_MODEL_TRACE=1 says each event as it happens;
// FORESTAGE_MODEL_WITHOUT=a,b leaves events out.
#include "tests/model/daemon_model.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"

namespace forestage {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

using Mistake = DaemonModel::Mistake;

// Sanitizers slow a run down to a tenth.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kRounds = 150;
#else
constexpr uint64_t kRounds = 1000;
#endif
constexpr uint64_t kRoundsForCoverage = 200;
constexpr uint64_t kRoundsTwice = 40;
// Within so many runs a mistake must be found.
constexpr uint64_t kRoundsForMistake = 400;
// How often a run is tried anew before a kind of event counts as needed.
constexpr uint64_t kRunsPerEvent = 25;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The seed of the run that goes on, for those that end the program.
volatile sig_atomic_t crash_text_bytes = 0;
char crash_text[64];
struct sigaction handler_before;

void OnCrash(int signal) {
  (void)!write(STDERR_FILENO, crash_text, static_cast<size_t>(crash_text_bytes));
  // The step that crashed is done again, under whoever handled it before.
  sigaction(signal, &handler_before, nullptr);
  if (signal == SIGABRT) raise(signal);
}

void NameSeedInCrash(uint64_t seed) {
  crash_text_bytes = std::snprintf(crash_text, sizeof(crash_text), "FORESTAGE_MODEL_SEED=%llu\n",
                                   static_cast<unsigned long long>(seed));
}

void HandleCrashes() {
  struct sigaction action = {};
  action.sa_handler = OnCrash;
  sigaction(SIGSEGV, &action, &handler_before);
  sigaction(SIGABRT, &action, &handler_before);
}

std::string WithoutNumbers(std::string text) {
  std::erase_if(text, [](char one) { return one >= '0' && one <= '9'; });
  return text;
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
  DaemonModelTest() {
    spdlog::set_level(spdlog::level::off);
    HandleCrashes();
    if (const char* const without = std::getenv("FORESTAGE_MODEL_WITHOUT")) {
      without_ = absl::StrSplit(without, ',');
    }
  }

  DaemonModel::Outcome Play(uint64_t seed, Mistake mistake = Mistake::kNone) {
    NameSeedInCrash(seed);
    DaemonModel model({.seed = seed,
                       .mistake = mistake,
                       .without = without_,
                       .says_trace = std::getenv("FORESTAGE_MODEL_TRACE") != nullptr},
                      world_, coverage_);
    return model.Play();
  }
  // A short run with the same violation, found by leaving out one kind of event after the other.
  std::string Shortened(const std::string& violation, uint64_t seed) {
    const auto find_shortest = [&](uint64_t runs) {
      std::optional<std::pair<uint64_t, DaemonModel::Outcome>> shortest;
      for (uint64_t i = 0; i < runs; ++i) {
        DaemonModel::Outcome outcome = Play(seed + i);
        if (WithoutNumbers(outcome.violation) != WithoutNumbers(violation)) continue;
        if (!shortest.has_value() || outcome.trace.size() < shortest->second.trace.size()) {
          shortest = {seed + i, std::move(outcome)};
        }
      }
      return shortest;
    };
    for (const std::string& event : DaemonModel::EventNames()) {
      if (!without_.insert(event).second) continue;
      if (!find_shortest(kRunsPerEvent).has_value()) without_.erase(event);
    }
    const auto shortest = find_shortest(kRoundsForMistake);
    if (!shortest.has_value()) return "no shorter run";
    return absl::StrCat("shorter: FORESTAGE_MODEL_SEED=", shortest->first,
                        " FORESTAGE_MODEL_ROUNDS=1 FORESTAGE_MODEL_WITHOUT='",
                        absl::StrJoin(without_, ","), "'\n",
                        absl::StrJoin(shortest->second.trace, "\n"));
  }
  // The first violation within some rounds.
  std::string ViolationBy(Mistake mistake) {
    for (uint64_t seed = 1; seed <= kRoundsForMistake; ++seed) {
      const DaemonModel::Outcome outcome = Play(seed, mistake);
      if (!outcome.violation.empty()) return outcome.violation;
    }
    return "";
  }

  std::set<std::string> without_;
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
    if (!outcome.violation.empty()) {
      FAIL() << outcome.violation << "\nrepeat with FORESTAGE_MODEL_SEED=" << first + i
             << " FORESTAGE_MODEL_ROUNDS=1\n"
             << absl::StrJoin(outcome.trace, "\n") << "\n"
             << Shortened(outcome.violation, first + i);
    }
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
                                 "failed before it came",
                                 "failed before the decision",
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
  EXPECT_THAT(ViolationBy(Mistake::kReaderLies), HasSubstr("verified"));
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
