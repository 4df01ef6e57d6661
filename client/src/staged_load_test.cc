// Loads with a daemon that helps, refuses, lies, or goes away. Without gRPC.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/daemon_fake.h"
#include "client/src/load_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "common/status_macros.h"
#include "common/status_matchers.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StagedLoadTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("FORESTAGE_SOCKET"); }

  // Nothing of the checkpoint is in memory then.
  absl::StatusOr<std::shared_ptr<LoadSession>> Open(const SessionOptions& options = {}) {
    auto session = LoadSession::Open(checkpoint_.directory(), options, daemon_.connector());
    checkpoint_.MakeCold();
    return session;
  }

  void ExpectAllBytes(const LoadSession& session) {
    for (const auto& [name, bytes] : checkpoint_.tensors()) {
      ASSERT_OK_AND_ASSIGN(Slice slice, session.GetSlice(name, {}));
      ASSERT_OK_AND_ASSIGN(SliceView view, slice.View());
      EXPECT_TRUE(view.bytes() == absl::MakeConstSpan(bytes)) << name;
      std::vector<std::byte> copy(bytes.size());
      ASSERT_OK(slice.CopyTo(absl::MakeSpan(copy)));
      EXPECT_TRUE(copy == bytes) << name;
    }
  }

  static std::vector<ChosenSlice> WholeCatalog(const Catalog& catalog) {
    std::vector<ChosenSlice> all;
    for (size_t i = 0; i < catalog.tensor_count(); ++i) {
      all.push_back({.tensor_index = i, .ranges = {}});
    }
    return all;
  }

  // All of the checkpoint is in memory then.
  void ReadAll() const {
    for (size_t i = 0; i < 2; ++i) {
      std::ifstream file(checkpoint_.ShardPath(i), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      EXPECT_EQ(bytes.size(), std::filesystem::file_size(checkpoint_.ShardPath(i)));
    }
  }

  // The load went on natively, for this reason, with the right bytes.
  void ExpectNative(const LoadSession& session, const std::string& reason) {
    EXPECT_EQ(session.decision().effective, Policy::kNative);
    EXPECT_THAT(session.decision().reason, AllOf(HasSubstr(reason), Not(HasSubstr("\n"))));
    ExpectAllBytes(session);
  }

  const CheckpointForTest checkpoint_{
      {.shards = 2, .tensors = 3, .rows = 128, .columns = 1024, .seed = 5}};
  DaemonFake daemon_;
};

// Makes what is asked for resident, as the daemon does.
void StageUrgent(DaemonFake& daemon, absl::Span<const uint64_t> indexes) {
  for (const uint64_t index : indexes) daemon.board().SetState(index, ExtentState::kResident);
}

TEST_F(StagedLoadTest, AsksOnceForWhatIsNotStagedAndGivesTheBytes) {
  daemon_.on_urgent = StageUrgent;
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  const Decision decision = session->decision();
  EXPECT_EQ(decision.requested, Policy::kAuto);
  EXPECT_EQ(decision.effective, Policy::kRankStripedReadAhead);
  EXPECT_TRUE(decision.activated);
  ExpectAllBytes(*session);
  std::vector<uint64_t> urgent = daemon_.urgent();
  std::sort(urgent.begin(), urgent.end());
  EXPECT_EQ(std::adjacent_find(urgent.begin(), urgent.end()), urgent.end());
  EXPECT_THAT(urgent, Not(IsEmpty()));
  EXPECT_EQ(session->decision().effective, Policy::kRankStripedReadAhead);
}

TEST_F(StagedLoadTest, AsksForNothingThatIsStaged) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  daemon_.SetAll(ExtentState::kResident);
  ExpectAllBytes(*session);
  EXPECT_THAT(daemon_.urgent(), IsEmpty());
}

TEST_F(StagedLoadTest, UsesWhatIsInMemoryBeforeTheDaemonHasLookedAtIt) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ReadAll();
  daemon_.SetAll(ExtentState::kQueued);
  ExpectAllBytes(*session);
  EXPECT_THAT(daemon_.urgent(), IsEmpty());
  EXPECT_EQ(session->decision().effective, Policy::kRankStripedReadAhead);
}

// Pages are cached from the moment on in which their read begins.
TEST_F(StagedLoadTest, WaitsForWhatTheDaemonIsReadingAlthoughItIsCached) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ReadAll();
  daemon_.SetAll(ExtentState::kReading);
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_THAT(slice.View(absl::Now() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("offset")));
}

TEST_F(StagedLoadTest, TheDaemonIsToldItsOwnIndexesWhereTheIndexHasLeftCopiesOut) {
  TemporaryDirectoryForTest directory;
  const std::vector<std::byte> meant = RandomBytes(100, 1);
  const std::vector<std::byte> copy = RandomBytes(100, 2);
  // In the daemon's file order: a, b, c; b, d.
  WriteShard(directory.File("x.safetensors"),
             {{"a", "U8", {100}, meant}, {"b", "U8", {100}, copy}, {"c", "U8", {100}, meant}});
  WriteShard(directory.File("y.safetensors"),
             {{"b", "U8", {100}, meant}, {"d", "U8", {100}, meant}});
  std::ofstream(directory.File("model.safetensors.index.json"))
      << R"({"weight_map":{"a":"x.safetensors","b":"y.safetensors","c":"x.safetensors",)"
         R"("d":"y.safetensors"}})";
  SessionOptions options;
  options.demand = {{.tensor = "d", .ranges = {}}, {.tensor = "a", .ranges = {}}};
  daemon_.on_urgent = StageUrgent;
  ASSERT_OK_AND_ASSIGN(auto session,
                       LoadSession::Open(directory.path(), options, daemon_.connector()));
  EXPECT_EQ(session->decision().effective, Policy::kRankStripedReadAhead);
  EXPECT_EQ(session->catalog()->tensor_count(), 4u);
  ASSERT_EQ(daemon_.demand().size(), 2u);
  EXPECT_EQ(daemon_.demand()[0].tensor_index, 4u);
  EXPECT_EQ(daemon_.demand()[1].tensor_index, 0u);
  for (const char* name : {"a", "b", "c", "d"}) {
    ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(name, {}));
    ASSERT_OK_AND_ASSIGN(SliceView view, slice.View());
    EXPECT_TRUE(view.bytes() == absl::MakeConstSpan(meant)) << name;
    session->MarkConsumed(slice.tensor_index());
  }
  // The copy first: nobody will ask for it.
  EXPECT_THAT(daemon_.consumed(), ElementsAre(1, 0, 3, 2, 4));
}

TEST_F(StagedLoadTest, ReadsFailedExtentsItself) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  daemon_.SetAll(ExtentState::kFailed);
  ExpectAllBytes(*session);
  EXPECT_EQ(session->decision().effective, Policy::kRankStripedReadAhead);
}

TEST_F(StagedLoadTest, TellsTheDaemonWhoItIs) {
  SessionOptions options;
  options.group_name = "group";
  options.local_rank = 1;
  options.local_size = 3;
  options.agreement = Agreement::kStrict;
  options.socket_path = "/some/socket";
  setenv("FORESTAGE_DAEMON_USER", "daemon", 1);
  setenv("FORESTAGE_LAUNCH_NONCE", "launch 7", 1);
  ASSERT_OK_AND_ASSIGN(auto session, LoadSession::Open(checkpoint_.directory() + "/./", options,
                                                       daemon_.connector()));
  unsetenv("FORESTAGE_LAUNCH_NONCE");
  unsetenv("FORESTAGE_DAEMON_USER");
  const DaemonOpenRequest request = daemon_.request();
  EXPECT_EQ(request.group_name, "group");
  EXPECT_EQ(request.launch_nonce, "launch 7");
  EXPECT_EQ(request.local_rank, 1u);
  EXPECT_EQ(request.local_size, 3u);
  EXPECT_EQ(request.agreement, Agreement::kStrict);
  EXPECT_EQ(request.socket_path, "/some/socket");
  EXPECT_EQ(request.daemon_user, "daemon");
  EXPECT_EQ(request.path, checkpoint_.directory());
  EXPECT_FALSE(request.demand_follows);
  ASSERT_EQ(request.shards.size(), 2u);
  EXPECT_EQ(request.shards[1].name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(request.shards[1].bytes, std::filesystem::file_size(checkpoint_.ShardPath(1)));
}

TEST_F(StagedLoadTest, IsAGroupOfItsOwnWithoutAName) {
  ASSERT_OK(Open());
  const std::string first = daemon_.request().group_name;
  ASSERT_OK(Open());
  EXPECT_THAT(first, HasSubstr(absl::StrCat(getpid())));
  EXPECT_NE(first, daemon_.request().group_name);
}

TEST_F(StagedLoadTest, SendsItsDemandAsByteRanges) {
  SessionOptions options;
  options.demand = {{.tensor = "layer.1.2", .ranges = {}},
                    {.tensor = "layer.0.1", .ranges = {{2, 4}}},
                    {.tensor = "layer.0.1", .ranges = {{3, 3}}},
                    {.tensor = "layer.0.0", .ranges = {{0, 2}, {10, 20}}}};
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  EXPECT_TRUE(daemon_.request().demand_follows);
  const std::vector<DemandedBytes> demand = daemon_.demand();
  ASSERT_EQ(demand.size(), 3u);
  EXPECT_EQ(demand[0].tensor_index, 5u);
  EXPECT_EQ(demand[0].begin, 0u);
  EXPECT_EQ(demand[0].end, 128u * 1024);
  EXPECT_EQ(demand[1].tensor_index, 1u);
  EXPECT_EQ(demand[1].begin, 2048u);
  EXPECT_EQ(demand[1].end, 4096u);
  EXPECT_EQ(demand[2].begin, 10u);
  EXPECT_EQ(demand[2].end, 1044u);
}

TEST_F(StagedLoadTest, LetsTheRankChooseItsDemandWhenItKnowsTheCatalog) {
  SessionOptions options;
  int calls = 0;
  size_t index = 4;
  options.choose_demand = [&](const Catalog& catalog) {
    EXPECT_EQ(catalog.tensor_count(), 6u);
    if (++calls == 1) {
      EXPECT_TRUE(daemon_.demand().empty());
    }
    return std::vector<ChosenSlice>{{.tensor_index = index, .ranges = {{1, 3}}}};
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(daemon_.request().demand_follows);
  const std::vector<DemandedBytes> demand = daemon_.demand();
  ASSERT_EQ(demand.size(), 1u);
  EXPECT_EQ(demand[0].tensor_index, 4u);
  EXPECT_EQ(demand[0].begin, 1024u);
  EXPECT_EQ(demand[0].end, 3072u);
  index = 6;
  EXPECT_THAT(Open(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("index 6")));
  options.demand.emplace();
  EXPECT_THAT(Open(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("demand")));
}

// What others brought in is in memory: nobody is asked, whatever the daemon has seen.
TEST_F(StagedLoadTest, BelievesTheBoardOfWhatIsInMemoryWithoutAskingTheDaemon) {
  SessionOptions options;
  options.choose_demand = [this](const Catalog& catalog) {
    daemon_.SetAll(ExtentState::kResident);
    return WholeCatalog(catalog);
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  ReadAll();
  ExpectAllBytes(*session);
  EXPECT_EQ(daemon_.progress_requests(), 0);
  EXPECT_THAT(daemon_.urgent(), IsEmpty());
}

// An extent may be resident for what others demand of it.
TEST_F(StagedLoadTest, AsksOnceWhetherItsDemandWasSeenWhereTheBoardSaysMoreThanIsInMemory) {
  checkpoint_.MakeCold();
  daemon_.on_urgent = [this](DaemonFake& daemon, absl::Span<const uint64_t> indexes) {
    ReadAll();
    StageUrgent(daemon, indexes);
  };
  daemon_.on_progress = [](DaemonFake& daemon) { daemon.SetAll(ExtentState::kQueued); };
  SessionOptions options;
  options.choose_demand = [this](const Catalog& catalog) {
    daemon_.SetAll(ExtentState::kResident);
    return WholeCatalog(catalog);
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  // No open waits for that.
  EXPECT_EQ(daemon_.progress_requests(), 0);
  ExpectAllBytes(*session);
  EXPECT_EQ(daemon_.progress_requests(), 1);
  EXPECT_THAT(daemon_.urgent(), Not(IsEmpty()));
}

// What the daemon says by itself may be taken for the answer: then it is asked once more.
TEST_F(StagedLoadTest, AsksAgainWhereTheAnswerChangedNothing) {
  checkpoint_.MakeCold();
  daemon_.on_urgent = [this](DaemonFake& daemon, absl::Span<const uint64_t> indexes) {
    ReadAll();
    StageUrgent(daemon, indexes);
  };
  daemon_.on_progress = [](DaemonFake& daemon) {
    if (daemon.progress_requests() == 2) daemon.SetAll(ExtentState::kQueued);
  };
  SessionOptions options;
  options.choose_demand = [this](const Catalog& catalog) {
    daemon_.SetAll(ExtentState::kResident);
    return WholeCatalog(catalog);
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  ExpectAllBytes(*session);
  EXPECT_EQ(daemon_.progress_requests(), 2);
  EXPECT_THAT(daemon_.urgent(), Not(IsEmpty()));
}

TEST_F(StagedLoadTest, AsksNothingWhereNothingOfItsDemandWasBegun) {
  checkpoint_.MakeCold();
  daemon_.on_urgent = StageUrgent;
  SessionOptions options;
  options.choose_demand = &StagedLoadTest::WholeCatalog;
  ASSERT_OK_AND_ASSIGN(auto session, Open(options));
  ReadAll();
  ExpectAllBytes(*session);
  EXPECT_EQ(daemon_.progress_requests(), 0);
}

TEST_F(StagedLoadTest, MarksEachTensorConsumedOnce) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  session->MarkConsumed(4);
  session->MarkConsumed(1);
  session->MarkConsumed(4);
  session->MarkConsumed(1000);
  EXPECT_THAT(daemon_.consumed(), ElementsAre(4, 1));
}

TEST_F(StagedLoadTest, GoesNativeWhenTheDaemonRefuses) {
  daemon_.refusal = absl::ResourceExhaustedError("256 sessions are open");
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "256 sessions are open");
  EXPECT_FALSE(session->decision().activated);
}

TEST_F(StagedLoadTest, BelievesItsOwnReadingOfTheHeaders) {
  daemon_.refusal = absl::InvalidArgumentError("model-00001: bad header\nmodel-00002: bad header");
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "model-00001: bad header; model-00002: bad header");
  std::filesystem::resize_file(checkpoint_.ShardPath(0), 20);
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(checkpoint_.ShardPath(0))));
}

TEST_F(StagedLoadTest, StaysAMemberWhenTheDaemonDecidesNative) {
  daemon_.decision = {.effective = Policy::kNative, .reason = "rank 1 of 2 is missing"};
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "rank 1 of 2 is missing");
  EXPECT_EQ(daemon_.closes(), 0);
  session.reset();
  EXPECT_EQ(daemon_.closes(), 1);
}

TEST_F(StagedLoadTest, GoesNativeOnADecisionItDoesNotKnow) {
  daemon_.decision.effective = Policy::kAuto;
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "does not know");
  EXPECT_EQ(daemon_.closes(), 1);
}

TEST_F(StagedLoadTest, GoesNativeWhenTheCatalogIsDamaged) {
  daemon_.damage_catalog = [](std::vector<std::byte>& bytes) { bytes.resize(bytes.size() - 8); };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "catalog");
}

TEST_F(StagedLoadTest, GoesNativeWhenTheCatalogIsOfOtherFiles) {
  const CheckpointForTest other({.shards = 2, .tensors = 2});
  daemon_.damage_catalog = [&](std::vector<std::byte>& bytes) {
    ASSERT_OK_AND_ASSIGN(auto files, CheckpointFiles::Open(other.directory(), {}));
    ASSERT_OK_AND_ASSIGN(HeldCatalog catalog, ReadNativeCatalog(*files));
    bytes = *static_cast<const std::vector<std::byte>*>(catalog.owner.get());
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ExpectNative(*session, "not of the files that this rank sees");
  EXPECT_EQ(daemon_.closes(), 1);
}

TEST_F(StagedLoadTest, GoesNativeWhenTheBoardDoesNotFit) {
  daemon_.damage_board = [](StagingBoard::Options& options) { ++options.extent_count; };
  ASSERT_OK_AND_ASSIGN(auto longer, Open());
  ExpectNative(*longer, "extents");
  daemon_.damage_board = [](StagingBoard::Options& options) { options.extent_bytes *= 2; };
  ASSERT_OK_AND_ASSIGN(auto coarser, Open());
  ExpectNative(*coarser, "extents");
  daemon_.damage_board = [](StagingBoard::Options& options) { options.generation = 1; };
  ASSERT_OK_AND_ASSIGN(auto old, Open());
  ExpectNative(*old, "another run");
}

TEST_F(StagedLoadTest, GoesNativeWhenTheDaemonIsLostDuringAWait) {
  daemon_.on_urgent = [](DaemonFake& daemon, absl::Span<const uint64_t>) {
    daemon.loss().Lose("the daemon closed the stream: UNAVAILABLE");
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_OK(slice.View());
  ExpectNative(*session, "closed the stream");
}

TEST_F(StagedLoadTest, KeepsActivatedWhenTheDaemonIsLost) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  daemon_.loss().Lose("the daemon is draining");
  ExpectNative(*session, "draining");
  EXPECT_TRUE(session->decision().activated);
  EXPECT_THAT(session->GetStagingStatus(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
}

// The first asking is lost: the session for which the extent was being read ends with it.
TEST_F(StagedLoadTest, AsksAgainForWhatNobodyElseWantsAnyMore) {
  int asked = 0;
  daemon_.on_urgent = [&](DaemonFake& daemon, absl::Span<const uint64_t> indexes) {
    daemon.board().Beat();
    if (++asked == 2) StageUrgent(daemon, indexes);
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {{0, 1}}));
  EXPECT_OK(slice.View());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(session->decision().effective, Policy::kRankStripedReadAhead);
}

TEST_F(StagedLoadTest, GoesNativeWhenTheBoardIsClosedDuringAWait) {
  daemon_.on_urgent = [](DaemonFake& daemon, absl::Span<const uint64_t>) {
    daemon.board().Close();
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_OK(slice.View());
  ExpectNative(*session, "closed its staging board");
}

// The fake never beats, so that the board's heartbeat is as old as the board.
TEST_F(StagedLoadTest, GoesNativeWhenTheHeartbeatStandsStill) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  EXPECT_OK(slice.View());
  ExpectNative(*session, "heartbeat");
}

TEST_F(StagedLoadTest, EndsAWaitAtItsDeadline) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice("layer.1.0", {}));
  const auto late = StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr(checkpoint_.ShardPath(1)), HasSubstr("offset")));
  EXPECT_THAT(slice.View(absl::Now() + absl::Milliseconds(10)), late);
  std::vector<std::byte> copy(slice.bytes());
  EXPECT_THAT(slice.CopyTo(absl::MakeSpan(copy), absl::InfinitePast()), late);
  daemon_.SetAll(ExtentState::kResident);
  EXPECT_OK(slice.View(absl::InfinitePast()));
}

TEST_F(StagedLoadTest, EndsWaitsOfManyThreadsWhenItIsClosed) {
  constexpr int kThreads = 4;
  std::atomic<int> asked = 0;
  absl::Notification all_wait;
  daemon_.on_urgent = [&](DaemonFake&, absl::Span<const uint64_t>) {
    if (++asked == kThreads) all_wait.Notify();
  };
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  std::vector<std::thread> threads;
  std::atomic<int> ended = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // Slices far enough apart that each asks for extents of its own.
      const absl::StatusOr<Slice> slice =
          session->GetSlice(absl::StrCat("layer.", t / 2, ".", t % 2 * 2), {{{0, 1}}});
      if (slice.ok() && absl::IsFailedPrecondition(slice->View().status())) ++ended;
    });
  }
  all_wait.WaitForNotification();
  session->Close();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads);
  EXPECT_EQ(daemon_.closes(), 1);
}

TEST_F(StagedLoadTest, WaitsUntilAllIsStaged) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  daemon_.progress = {.wanted_bytes = 100, .resident_bytes = 40, .complete = false};
  EXPECT_THAT(session->WaitUntilStaged(absl::Now(), nullptr),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not all")));
  // The daemon has nothing more to do, but has not seen this rank's demand yet.
  daemon_.progress = {.wanted_bytes = 100, .resident_bytes = 100, .complete = true};
  EXPECT_THAT(session->WaitUntilStaged(absl::Now(), nullptr),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("not all")));
  int calls = 0;
  ASSERT_OK_AND_ASSIGN(
      const StagingStatus status,
      session->WaitUntilStaged(absl::InfiniteFuture(), [&](const StagingStatus& seen) {
        if (++calls == 2) {
          daemon_.SetAll(ExtentState::kResident);
        }
        EXPECT_EQ(seen.resident_bytes, 100u);
      }));
  EXPECT_TRUE(status.complete);
  EXPECT_EQ(calls, 3);
}

// The board wakes the waiter: it does not look again at its own times only. Between two questions
// to the daemon lies a quarter of a second, in which a hundred changes of the board would not fit.
TEST_F(StagedLoadTest, SeesTheEndOfStagingOnTheBoard) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  constexpr int kRounds = 100;
  daemon_.progress = {.wanted_bytes = 100, .resident_bytes = 100, .complete = true};
  const absl::Time begun = absl::Now();
  for (int round = 0; round < kRounds; ++round) {
    daemon_.SetAll(ExtentState::kQueued);
    std::thread reader;
    ASSERT_OK(session->WaitUntilStaged(absl::InfiniteFuture(), [&](const StagingStatus&) {
      if (!reader.joinable()) reader = std::thread([&] { daemon_.SetAll(ExtentState::kResident); });
    }));
    reader.join();
  }
  // Asking by a clock alone would take kRounds times 250 ms.
  EXPECT_LT(absl::Now() - begun, kRounds * absl::Milliseconds(250));
}

TEST_F(StagedLoadTest, EndsTheWaitForStagingWhenTheDaemonIsLost) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  EXPECT_THAT(
      session->WaitUntilStaged(absl::InfiniteFuture(),
                               [&](const StagingStatus&) { daemon_.loss().Lose("it was killed"); }),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it was killed")));
}

TEST_F(StagedLoadTest, DoesNotTouchTheParentsSessionInAForkedChild) {
  ASSERT_OK_AND_ASSIGN(auto session, Open());
  ASSERT_OK_AND_ASSIGN(Slice slice, session->GetSlice(0, {}));
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(slice.View().status()) &&
                         session->decision().effective == Policy::kNative;
    session->MarkConsumed(0);
    session->Close();
    LoadSession::Drop(std::move(session));
    _exit(refused && daemon_.closes() == 0 && daemon_.consumed().empty() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  daemon_.SetAll(ExtentState::kResident);
  ExpectAllBytes(*session);
}

// Extents of one shard on a real board, and a connection that notes what is asked for.
class StagedExtentsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kExtents = 16;
  static constexpr uint64_t kBytes = kExtents * DaemonFake::kExtentBytes;

  class Connection : public DaemonSession {
   public:
    std::vector<uint64_t> urgent;
    std::function<void()> on_urgent;

   private:
    void SendDemand(absl::Span<const DemandedBytes>) override {}
    void SendUrgent(absl::Span<const uint64_t> indexes) override {
      urgent.insert(urgent.end(), indexes.begin(), indexes.end());
      if (on_urgent) on_urgent();
    }
    void SendConsumed(uint32_t) override {}
    absl::StatusOr<StagingStatus> GetProgress(absl::Time) override { return StagingStatus{}; }
    void Close() override {}
  };

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(board_, StagingBoard::Create({.extent_count = kExtents,
                                                       .extent_bytes = DaemonFake::kExtentBytes,
                                                       .generation = 1}));
    ASSERT_OK_AND_ASSIGN(extents_, MakeExtents(absl::Milliseconds(20)));
  }

  absl::StatusOr<std::unique_ptr<StagedExtents>> MakeExtents(absl::Duration patience) {
    ASSIGN_OR_RETURN(auto view,
                     StagingBoardView::Map(UniqueFd(fcntl(board_->fd(), F_DUPFD_CLOEXEC, 0))));
    const std::vector<uint64_t> shard_bytes = {kBytes};
    return StagedExtents::Create({.board = std::move(view),
                                  .shard_bytes = shard_bytes,
                                  .daemon = &connection_,
                                  .loss = loss_,
                                  .patience = patience});
  }

  // Waits for the first byte of an extent, with all behind it to follow.
  absl::StatusOr<Reader> WaitForExtent(uint64_t index, absl::Time deadline) {
    const uint64_t begin = index * DaemonFake::kExtentBytes;
    return extents_->Wait(0, begin, begin + 1, kBytes, deadline);
  }

  std::unique_ptr<StagingBoard> board_;
  Connection connection_;
  const std::shared_ptr<DaemonLoss> loss_ = std::make_shared<DaemonLoss>();
  std::unique_ptr<StagedExtents> extents_;
};

auto IsLate() { return StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("offset")); }

TEST_F(StagedExtentsTest, AsksForAFewExtentsFromTheOneThatItWaitsForOn) {
  board_->SetState(4, ExtentState::kQueued);
  board_->SetState(5, ExtentState::kReading);
  EXPECT_THAT(WaitForExtent(3, absl::InfinitePast()), IsLate());
  EXPECT_THAT(connection_.urgent, ElementsAre(3, 4, 6));
  EXPECT_THAT(WaitForExtent(3, absl::InfinitePast()), IsLate());
  EXPECT_THAT(connection_.urgent, ElementsAre(3, 4, 6));
}

TEST_F(StagedExtentsTest, AsksForNothingThatTheDaemonReadsAlready) {
  board_->SetState(0, ExtentState::kReading);
  EXPECT_THAT(WaitForExtent(0, absl::Now() + absl::Milliseconds(10)), IsLate());
  EXPECT_THAT(connection_.urgent, IsEmpty());
}

// A wait that spins takes the processor from the daemon that it waits for.
TEST_F(StagedExtentsTest, SleepsWhileTheDaemonReads) {
  const auto thread_time = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return absl::DurationFromTimespec(time);
  };
  ASSERT_OK_AND_ASSIGN(const auto extents, MakeExtents(absl::Seconds(60)));
  board_->SetState(0, ExtentState::kReading);
  constexpr absl::Duration kWait = absl::Milliseconds(300);
  const absl::Duration before = thread_time();
  EXPECT_THAT(extents->Wait(0, 0, 1, kBytes, absl::Now() + kWait), IsLate());
  EXPECT_LT(thread_time() - before, kWait / 20);
}

TEST_F(StagedExtentsTest, AsksForTheNextExtentOnlyIfTheDaemonDoesNotComeToItByItself) {
  for (uint64_t i = 1; i < kExtents; ++i) board_->SetState(i, ExtentState::kQueued);
  board_->SetState(0, ExtentState::kReading);
  EXPECT_THAT(WaitForExtent(0, absl::InfinitePast()), IsLate());
  EXPECT_THAT(WaitForExtent(1, absl::InfinitePast()), IsLate());
  EXPECT_THAT(connection_.urgent, IsEmpty());
  connection_.on_urgent = [this] { board_->SetState(1, ExtentState::kResident); };
  ASSERT_OK_AND_ASSIGN(const Reader reader, WaitForExtent(1, absl::InfiniteFuture()));
  EXPECT_EQ(reader, Reader::kDaemon);
  EXPECT_THAT(connection_.urgent, ElementsAre(1, 2, 3, 4));
  // The daemon is elsewhere: what comes next is asked for at once.
  EXPECT_THAT(WaitForExtent(5, absl::InfinitePast()), IsLate());
  EXPECT_THAT(connection_.urgent, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// An extent that the daemon forgets is read by the rank, and each further one is waited for less.
TEST_F(StagedExtentsTest, GivesUpAnExtentThatStandsStill) {
  ASSERT_OK_AND_ASSIGN(const Reader stuck, WaitForExtent(0, absl::InfiniteFuture()));
  EXPECT_EQ(stuck, Reader::kSelf);
  EXPECT_FALSE(loss_->lost());
  // It is not waited for again.
  ASSERT_OK_AND_ASSIGN(const Reader again, WaitForExtent(0, absl::InfinitePast()));
  EXPECT_EQ(again, Reader::kSelf);
  EXPECT_FALSE(extents_->WaitUntilSettled({extents_->Covering(0, 0, 10)}, absl::InfinitePast()));
  board_->SetState(1, ExtentState::kResident);
  ASSERT_OK_AND_ASSIGN(const Reader good, WaitForExtent(1, absl::InfinitePast()));
  EXPECT_EQ(good, Reader::kDaemon);
  const auto second = extents_->Covering(0, DaemonFake::kExtentBytes, 2 * DaemonFake::kExtentBytes);
  EXPECT_TRUE(extents_->WaitUntilSettled({second}, absl::InfinitePast()));
  // Somebody else's extent is on its way: all that is demanded has not come yet.
  board_->SetState(3, ExtentState::kReading);
  EXPECT_FALSE(extents_->WaitUntilSettled({second}, absl::InfinitePast()));
  board_->SetState(3, ExtentState::kFailed);
  EXPECT_TRUE(extents_->WaitUntilSettled({second}, absl::InfinitePast()));
  loss_->Close();
  EXPECT_FALSE(extents_->WaitUntilSettled({second}, absl::InfinitePast()));
}

// Else the bytes that the daemon is told to read slowly would be read by the ranks.
TEST_F(StagedExtentsTest, DoesNotGiveUpWhatWaitsForTheDaemonsLimitOnly) {
  constexpr absl::Duration kPatience = absl::Milliseconds(100);
  ASSERT_OK_AND_ASSIGN(extents_, MakeExtents(kPatience));
  connection_.on_urgent = [this] {
    board_->SetState(0, ExtentState::kQueued);
    board_->NoteHeldBack();
  };
  const absl::Time begun = absl::Now();
  // It was held back in the first time of patience, and nothing was heard in the second.
  ASSERT_OK_AND_ASSIGN(const Reader reader, WaitForExtent(0, absl::InfiniteFuture()));
  EXPECT_EQ(reader, Reader::kSelf);
  EXPECT_GE(absl::Now() - begun, 2 * kPatience);
}

}  // namespace
}  // namespace forestage
