// The client against the real daemon, started by each test on a socket of its own.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/processes_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "forestage/session.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Waiting for the daemon to do what it will do; a test that reaches it hangs otherwise.
constexpr absl::Duration kPatience = absl::Seconds(60);

class SessionDaemonTest : public ::testing::Test {
 protected:
  SessionDaemonTest() { StartDaemon(); }

  void StartDaemon() { daemon_ = StartDaemonForTest(socket(), {"--extent-size", "64KiB"}); }
  std::string socket() const { return sockets_.File("s"); }

  SessionOptions Options() const {
    SessionOptions options;
    options.socket_path = socket();
    options.daemon_wait = kPatience;
    return options;
  }
  // Nothing is staged but what is asked for.
  SessionOptions OptionsWithoutDemand() const {
    SessionOptions options = Options();
    options.demand.emplace();
    return options;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(const SessionOptions& options) const {
    return Session::Open(checkpoint_.directory(), options);
  }

  std::unique_ptr<ProcessForTest> StartRank(int rank, int ranks, const std::string& agreement,
                                            int agreement_ms = 60'000) const {
    return std::make_unique<ProcessForTest>(std::vector<std::string>{
        FORESTAGE_RANK, checkpoint_.directory(), socket(), "group", absl::StrCat(rank),
        absl::StrCat(ranks), agreement, absl::StrCat(agreement_ms)});
  }

  void ExpectAllBytes(const Session& session) const {
    for (const auto& [name, bytes] : checkpoint_.tensors()) {
      ASSERT_OK_AND_ASSIGN(Slice slice, session.GetSlice(name));
      ASSERT_OK_AND_ASSIGN(SliceView view, slice.View());
      EXPECT_TRUE(view.bytes() == absl::MakeConstSpan(bytes)) << name;
      std::vector<std::byte> copy(bytes.size());
      ASSERT_OK(slice.CopyTo(absl::MakeSpan(copy)));
      EXPECT_TRUE(copy == bytes) << name;
    }
  }
  static void ExpectStaged(const Session& session) {
    EXPECT_EQ(session.decision().effective, Policy::kRankStripedReadAhead)
        << session.decision().reason;
    EXPECT_TRUE(session.decision().activated);
  }
  // Waits for the loss of the daemon to be seen.
  static void ExpectBecomesNative(const Session& session, const std::string& reason) {
    const absl::Time give_up = absl::Now() + kPatience;
    while (session.decision().effective != Policy::kNative && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_EQ(session.decision().effective, Policy::kNative);
    EXPECT_TRUE(session.decision().activated);
    EXPECT_THAT(session.decision().reason, HasSubstr(reason));
  }

  const CheckpointForTest checkpoint_{
      {.shards = 4, .tensors = 4, .rows = 300, .columns = 1000, .seed = 9}};
  const TemporaryDirectoryForTest sockets_;
  std::unique_ptr<ProcessForTest> daemon_;
};

TEST_F(SessionDaemonTest, StagesAndGivesTheRightBytes) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  ExpectStaged(*session);
  int calls = 0;
  ASSERT_OK_AND_ASSIGN(
      const StagingStatus status,
      session->WaitUntilStaged(absl::Now() + kPatience, [&](const StagingStatus&) { ++calls; }));
  EXPECT_TRUE(status.complete);
  EXPECT_GE(status.wanted_bytes, 16u * 300'000);
  EXPECT_EQ(status.resident_bytes, status.wanted_bytes);
  EXPECT_EQ(status.failed_bytes, 0u);
  EXPECT_GE(calls, 1);
  ExpectAllBytes(*session);
  session->MarkConsumed(0);
  ASSERT_OK(session->GetStagingStatus(absl::Now() + kPatience));
  ExpectStaged(*session);
  session->Close();
  EXPECT_THAT(session->GetStagingStatus(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("closed")));
}

TEST_F(SessionDaemonTest, StagesWhatIsAskedForWithoutADemand) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(OptionsWithoutDemand()));
  ExpectStaged(*session);
  ExpectAllBytes(*session);
  ExpectStaged(*session);
}

TEST_F(SessionDaemonTest, StagesADemandInParts) {
  SessionOptions options = Options();
  options.demand = {{.tensor = "layer.3.3"}, {.tensor = "layer.0.0", .ranges = {{10, 20}}}};
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  ASSERT_OK_AND_ASSIGN(const StagingStatus status,
                       session->WaitUntilStaged(absl::Now() + kPatience, nullptr));
  EXPECT_TRUE(status.complete);
  EXPECT_LT(status.wanted_bytes, 1'000'000u);
  ExpectAllBytes(*session);
}

TEST_F(SessionDaemonTest, GoesOnNativelyWhenTheDaemonIsKilled) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(OptionsWithoutDemand()));
  ExpectStaged(*session);
  daemon_->Signal(SIGSTOP);
  daemon_->WaitUntilStopped();
  // Nothing is staged, and nothing will be: these wait until the daemon is seen to be dead.
  std::vector<std::thread> ranks;
  for (int i = 0; i < 3; ++i) ranks.emplace_back([&] { ExpectAllBytes(*session); });
  daemon_->Signal(SIGKILL);
  for (std::thread& rank : ranks) rank.join();
  ExpectBecomesNative(*session, "the daemon closed the stream");
  ExpectAllBytes(*session);
  EXPECT_THAT(session->WaitUntilStaged(absl::InfiniteFuture(), nullptr),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("closed the stream"), Not(HasSubstr("natively")))));
}

TEST_F(SessionDaemonTest, GoesOnNativelyWhenTheDaemonStandsStill) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(OptionsWithoutDemand()));
  daemon_->Signal(SIGSTOP);
  daemon_->WaitUntilStopped();
  std::thread rank([&] { ExpectAllBytes(*session); });
  EXPECT_THAT(session->WaitUntilStaged(absl::InfiniteFuture(), nullptr),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("heartbeat")));
  rank.join();
  ExpectBecomesNative(*session, "heartbeat");
  daemon_->Signal(SIGCONT);
}

TEST_F(SessionDaemonTest, GoesOnNativelyWhenTheDaemonIsTerminated) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(OptionsWithoutDemand()));
  daemon_->Signal(SIGSTOP);
  daemon_->WaitUntilStopped();
  std::thread rank([&] { ExpectAllBytes(*session); });
  daemon_->Signal(SIGTERM);
  daemon_->Signal(SIGCONT);
  rank.join();
  ExpectBecomesNative(*session, "the daemon");
  EXPECT_THAT(session->decision().reason, AllOf(HasSubstr("natively"), Not(HasSubstr("\n"))));
  EXPECT_EQ(daemon_->Wait(), 0);
  ExpectAllBytes(*session);
}

TEST_F(SessionDaemonTest, UsesADaemonThatWasRestarted) {
  ASSERT_OK_AND_ASSIGN(auto first, Open(Options()));
  daemon_->Signal(SIGKILL);
  daemon_->Wait();
  ExpectBecomesNative(*first, "the daemon closed the stream");
  StartDaemon();
  ASSERT_OK_AND_ASSIGN(auto second, Open(Options()));
  ExpectStaged(*second);
  ExpectAllBytes(*second);
  ExpectAllBytes(*first);
}

TEST_F(SessionDaemonTest, GivesItsOwnErrorForADamagedShard) {
  std::filesystem::resize_file(checkpoint_.ShardPath(2), 1000);
  EXPECT_THAT(Open(Options()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(checkpoint_.ShardPath(2))));
}

TEST_F(SessionDaemonTest, DoesNotHarmTheParentsSessionInAForkedChild) {
  ASSERT_OK_AND_ASSIGN(auto session, Open(Options()));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(session->GetSlice(size_t{0}).status());
    session.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(session->WaitUntilStaged(absl::Now() + kPatience, nullptr));
  ExpectAllBytes(*session);
  ExpectStaged(*session);
}

TEST_F(SessionDaemonTest, GivesAStrictGroupOneDecision) {
  std::vector<std::unique_ptr<ProcessForTest>> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(StartRank(rank, 4, "strict"));
  for (auto& rank : ranks) {
    EXPECT_THAT(rank->ReadLine(), StartsWith("open rank_striped_read_ahead"));
    EXPECT_EQ(rank->ReadLine(), "loaded rank_striped_read_ahead 0");
  }
  for (auto& rank : ranks) {
    rank->CloseInput();
    EXPECT_EQ(rank->Wait(), 0);
  }
}

TEST_F(SessionDaemonTest, NamesTheMissingRankOfAStrictGroup) {
  const auto rank = StartRank(1, 2, "strict", 100);
  EXPECT_THAT(rank->ReadLine(), AllOf(StartsWith("open native"), HasSubstr("0")));
  EXPECT_EQ(rank->ReadLine(), "loaded native 0");
}

TEST_F(SessionDaemonTest, WelcomesALateRankAndARestartedOne) {
  const auto first = StartRank(0, 2, "eager");
  EXPECT_THAT(first->ReadLine(), StartsWith("open rank_striped_read_ahead"));
  EXPECT_EQ(first->ReadLine(), "loaded rank_striped_read_ahead 0");
  // Late: the other rank has loaded everything already.
  auto second = StartRank(1, 2, "eager");
  EXPECT_THAT(second->ReadLine(), StartsWith("open rank_striped_read_ahead"));
  EXPECT_EQ(second->ReadLine(), "loaded rank_striped_read_ahead 0");
  // Somebody else who says to be the same rank, while it lives.
  const auto impostor = StartRank(1, 2, "eager");
  EXPECT_THAT(impostor->ReadLine(), AllOf(StartsWith("open native"), HasSubstr("ALREADY_EXISTS")));
  EXPECT_EQ(impostor->ReadLine(), "loaded native 0");
  // Restarted: it dies without a word and comes again.
  second->Signal(SIGKILL);
  second->Wait();
  second = StartRank(1, 2, "eager");
  EXPECT_THAT(second->ReadLine(), StartsWith("open rank_striped_read_ahead"));
  EXPECT_EQ(second->ReadLine(), "loaded rank_striped_read_ahead 0");
}

// A daemon that is started only when its client waits for it already.
TEST(LateDaemonTest, IsWaitedFor) {
  const CheckpointForTest checkpoint({});
  const TemporaryDirectoryForTest sockets;
  SessionOptions options;
  options.socket_path = sockets.File("s");
  options.daemon_wait = kPatience;
  absl::StatusOr<std::unique_ptr<Session>> session = absl::UnknownError("not opened");
  std::thread rank([&] { session = Session::Open(checkpoint.directory(), options); });
  const auto daemon = StartDaemonForTest(options.socket_path);
  rank.join();
  ASSERT_OK(session);
  EXPECT_EQ((*session)->decision().effective, Policy::kRankStripedReadAhead)
      << (*session)->decision().reason;
}

}  // namespace
}  // namespace forestage
