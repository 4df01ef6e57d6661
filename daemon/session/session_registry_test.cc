#include "daemon/session/session_registry.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "daemon/limits.h"
#include "daemon/session/checkpoint_store_fake.h"
#include "daemon/session/session_loop.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Remembers what it is told, as one word an event.
class RecordingListener : public SessionListener {
 public:
  void OnOpened(const SessionToken& token) override {
    absl::MutexLock lock(&mutex_);
    token_ = token;
    events_.push_back("opened");
  }
  void OnCheckpoint(const CheckpointSummary& summary) override {
    Add(absl::StrCat("checkpoint ", summary.tensor_count));
  }
  void OnDecision(const SessionDecision& decision) override {
    absl::MutexLock lock(&mutex_);
    decision_ = decision;
    events_.push_back(absl::StrCat("decision ", SessionPolicyName(decision.effective)));
  }
  void OnProgress(const StagingProgress& progress) override {
    Add(progress.complete ? "complete" : "progress");
  }
  void OnDraining() override { Add("draining"); }
  void OnEnded(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ended_ = status;
    events_.push_back("ended");
  }

  SessionToken token() const {
    absl::MutexLock lock(&mutex_);
    return token_;
  }
  SessionDecision WaitForDecision() const {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](const std::optional<SessionDecision>* decision) { return decision->has_value(); },
            &decision_),
        kPatience));
    return decision_.value_or(SessionDecision());
  }
  bool has_decision() const {
    absl::MutexLock lock(&mutex_);
    return decision_.has_value();
  }
  absl::Status WaitForEnd() const {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(
        absl::Condition(
            +[](const std::optional<absl::Status>* ended) { return ended->has_value(); }, &ended_),
        kPatience));
    return ended_.value_or(absl::UnknownError("never ended"));
  }
  void WaitForEvent(const std::string& event) const {
    const auto seen = [this, &event] {
      mutex_.AssertReaderHeld();
      return std::find(events_.begin(), events_.end(), event) != events_.end();
    };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&seen), kPatience)) << event;
  }
  std::vector<std::string> events() const {
    absl::MutexLock lock(&mutex_);
    return events_;
  }

 private:
  void Add(std::string event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  mutable absl::Mutex mutex_;
  SessionToken token_ ABSL_GUARDED_BY(mutex_) = {};
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<SessionDecision> decision_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
};

// A child that does nothing until it is killed.
class IdleProcess {
 public:
  IdleProcess() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
    EXPECT_GT(pid_, 0);
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    EXPECT_GE(pidfd, 0);
    peer_ = {.pid = pid_,
             .uid = getuid(),
             .gid = getgid(),
             .pidfd = std::make_shared<const UniqueFd>(pidfd)};
  }
  ~IdleProcess() { Kill(); }
  const PeerIdentity& peer() const { return peer_; }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
  PeerIdentity peer_;
};

class SessionRegistryTest : public ::testing::Test {
 protected:
  struct Limits {
    uint64_t memory_bytes = kNoMemoryLimit;
    size_t sessions_per_user = 100;
    size_t descriptors_per_user = 1000;
    uint64_t staged_bytes_per_user = kNoMemoryLimit;
  };
  SessionRegistryTest() : SessionRegistryTest(Limits()) {}
  explicit SessionRegistryTest(const Limits& limits)
      : limits_(limits),
        ledger_({.root = machine_.path(), .headroom = {}, .limit_bytes = limits.memory_bytes}) {
    std::ofstream(shard_) << "weights";
  }

  struct Opened {
    SessionId id = 0;
    std::shared_ptr<RecordingListener> listener = std::make_shared<RecordingListener>();
  };

  static SessionTerms Terms(uint32_t rank, uint32_t size) {
    SessionTerms terms;
    terms.group_name = "job";
    terms.local_rank = rank;
    terms.local_size = size;
    terms.path = "/models/one";
    terms.shards = {{.name = "model.safetensors", .size_bytes = 4096, .mtime_ns = 1}};
    return terms;
  }
  static SessionTerms StrictTerms(uint32_t rank, uint32_t size) {
    SessionTerms terms = Terms(rank, size);
    terms.agreement = SessionAgreement::kStrict;
    return terms;
  }
  absl::StatusOr<Opened> TryOpen(const SessionTerms& terms) { return TryOpen(terms, self_.peer()); }
  absl::StatusOr<Opened> TryOpen(const SessionTerms& terms, const PeerIdentity& peer) {
    Opened opened;
    const auto id = registry_.Open(terms, peer, opened.listener);
    if (!id.ok()) return id.status();
    opened.id = *id;
    return opened;
  }
  Opened Open(const SessionTerms& terms) { return Open(terms, self_.peer()); }
  Opened Open(const SessionTerms& terms, const PeerIdentity& peer) {
    absl::StatusOr<Opened> opened = TryOpen(terms, peer);
    EXPECT_OK(opened);
    return opened.ok() ? *opened : Opened();
  }
  absl::StatusOr<uint32_t> AddShards(SessionId id, uint32_t first,
                                     std::vector<UniqueFd> descriptors) {
    auto charge = registry_.AdmitShards(id, first, descriptors.size());
    if (!charge.ok()) return charge.status();
    return registry_.AddShards(id, first, std::move(descriptors), *std::move(charge));
  }
  void SendShards(const Opened& session) {
    std::vector<UniqueFd> descriptors;
    descriptors.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const auto accepted = AddShards(session.id, 0, std::move(descriptors));
    ASSERT_OK(accepted);
    EXPECT_EQ(*accepted, 1u);
  }
  Opened OpenReady(const SessionTerms& terms) { return OpenReady(terms, self_.peer()); }
  Opened OpenReady(const SessionTerms& terms, const PeerIdentity& peer) {
    Opened opened = Open(terms, peer);
    SendShards(opened);
    opened.listener->WaitForEvent("checkpoint 2");
    return opened;
  }
  void Advance(absl::Duration duration) { now_ns_ += absl::ToInt64Nanoseconds(duration); }

  SessionRegistry::Options Options() {
    return {.sessions_max = 4,
            .sessions_per_user_max = limits_.sessions_per_user,
            .descriptors_per_user_max = limits_.descriptors_per_user,
            .staged_bytes_per_user_max = limits_.staged_bytes_per_user,
            .lanes_max = 2,
            .agreement_timeout = absl::Seconds(60),
            .descriptor_timeout = absl::Seconds(30),
            .lent_file_system = magic_,
            .now = [this] { return absl::FromUnixNanos(now_ns_.load()); },
            .memory = &ledger_};
  }

  static uint32_t MagicOf(const std::string& path) {
    struct statfs file_system = {};
    EXPECT_EQ(statfs(path.c_str(), &file_system), 0);
    return static_cast<uint32_t>(file_system.f_type);
  }
  UniqueFd OpenShard(int flags) const {
    UniqueFd fd(open(shard_.c_str(), flags | O_CLOEXEC));
    EXPECT_TRUE(fd.valid());
    return fd;
  }
  using Loans = absl::StatusOr<std::vector<SharedFd>>;
  // Shows the shard; the answer comes when there is one.
  std::future<Loans> Borrow(const Opened& session) {
    auto charge = registry_.AdmitNamedShards(session.id, 0, 1);
    EXPECT_OK(charge);
    std::vector<UniqueFd> named;
    named.push_back(OpenShard(O_PATH));
    auto answer = std::make_shared<std::promise<Loans>>();
    std::future<Loans> loans = answer->get_future();
    registry_.LendShards(session.id, std::move(named), {}, *std::move(charge),
                         [answer](Loans lent) { answer->set_value(std::move(lent)); });
    return loans;
  }
  void SendOpenShard(const Opened& session, UniqueFd descriptor) {
    std::vector<UniqueFd> descriptors;
    descriptors.push_back(std::move(descriptor));
    EXPECT_OK(AddShards(session.id, 0, std::move(descriptors)));
    session.listener->WaitForEvent("checkpoint 2");
  }
  static bool SameOpenFile(int a, int b) {
    return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
  }

  const Limits limits_;
  // A shard on a file system that stands for FUSE.
  const TemporaryDirectoryForTest shards_;
  const std::string shard_ = shards_.File("model.safetensors");
  const uint32_t magic_ = MagicOf(shards_.path());
  // Stands for the client's process; ours cannot exit.
  IdleProcess self_;
  std::atomic<int64_t> now_ns_ = 0;
  CheckpointStoreFake store_;
  std::unique_ptr<ExitWatch> exit_watch_ = *ExitWatch::Create();
  // Of a machine whose kernel says nothing: only the setting bounds.
  const TemporaryDirectoryForTest machine_;
  MemoryLedger ledger_;
  SessionRegistry registry_{Options(), store_, *exit_watch_, nullptr};
};

class SessionQuotaTest : public SessionRegistryTest {
 protected:
  SessionQuotaTest() : SessionRegistryTest({.sessions_per_user = 3, .descriptors_per_user = 3}) {}
};

TEST_F(SessionRegistryTest, EagerSessionGetsItsEventsInOrder) {
  const Opened rank = OpenReady(Terms(0, 4));
  EXPECT_EQ(rank.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(store_.last_lane_count(), 2u) << "one a local rank, at most lanes_max";
  EXPECT_EQ(store_.checkpoint(1)->demanded(rank.id), 2u);
  registry_.Close(rank.id);
  EXPECT_OK(rank.listener->WaitForEnd());
  EXPECT_THAT(rank.listener->events(),
              ElementsAre("opened", "checkpoint 2", "decision rank_striped_read_ahead", "ended"));
}

TEST_F(SessionRegistryTest, WhatIsStagedForAGroupWaitsForRanksThatOpenUntilEachHasATensor) {
  const Opened first = OpenReady(Terms(0, 3));
  first.listener->WaitForDecision();
  const std::shared_ptr<StagedCheckpointFake> staged = store_.checkpoint(1);
  EXPECT_THAT(staged->holding(), ElementsAre(first.id));
  // From its open on, and not only when it is ready.
  const Opened second = Open(Terms(1, 3));
  EXPECT_THAT(staged->holding(), ElementsAre(first.id, second.id));
  registry_.MarkConsumed(first.id, {});
  EXPECT_THAT(staged->holding(), ElementsAre(first.id, second.id));
  registry_.MarkConsumed(first.id, {0});
  EXPECT_THAT(staged->holding(), ElementsAre(second.id));
  SendShards(second);
  second.listener->WaitForDecision();
  EXPECT_THAT(staged->holding(), ElementsAre(second.id));
  registry_.MarkConsumed(second.id, {1});
  EXPECT_TRUE(staged->holding().empty());
  const Opened third = Open(Terms(2, 3));
  EXPECT_THAT(staged->holding(), ElementsAre(third.id));
  registry_.Close(third.id);
  EXPECT_TRUE(staged->holding().empty());
}

TEST_F(SessionRegistryTest, WhoOpensBeforeAnybodyIsReadyIsWaitedForToo) {
  const Opened first = Open(Terms(0, 2));
  const Opened second = OpenReady(Terms(1, 2));
  second.listener->WaitForDecision();
  const std::shared_ptr<StagedCheckpointFake> staged = store_.checkpoint(1);
  EXPECT_THAT(staged->holding(), ElementsAre(first.id, second.id));
  // Nobody reads for the group any more.
  registry_.Close(second.id);
  EXPECT_TRUE(staged->holding().empty());
}

TEST_F(SessionRegistryTest, WhoIsAloneIsWaitedForIfItHasADemandAndNotIfItOnlyStages) {
  SessionTerms terms = Terms(0, 1);
  const Opened stages = OpenReady(terms);
  stages.listener->WaitForDecision();
  const std::shared_ptr<StagedCheckpointFake> staged = store_.checkpoint(1);
  EXPECT_TRUE(staged->holding().empty());
  terms.group_name = "other";
  terms.demand_follows = true;
  const Opened loads = OpenReady(terms);
  loads.listener->WaitForDecision();
  EXPECT_THAT(staged->holding(), ElementsAre(loads.id));
}

TEST_F(SessionRegistryTest, LendsWhatASessionOfTheSameUserHasSent) {
  const Opened first = Open(Terms(0, 3));
  Loans loans = Borrow(first).get();
  ASSERT_OK(loans);
  EXPECT_EQ(loans->at(0), nullptr) << "nobody has it yet";
  const Opened second = Open(Terms(1, 3));
  std::future<Loans> waiting = Borrow(second);
  const UniqueFd mine = OpenShard(O_RDONLY);
  SendOpenShard(first, UniqueFd(dup(mine.get())));
  loans = waiting.get();
  ASSERT_OK(loans);
  ASSERT_NE(loans->at(0), nullptr);
  EXPECT_TRUE(SameOpenFile(loans->at(0)->get(), mine.get()));
  SendOpenShard(second, UniqueFd(dup(loans->at(0)->get())));
  // Also when the first is gone.
  registry_.Close(first.id);
  const Opened third = Open(Terms(2, 3));
  loans = Borrow(third).get();
  ASSERT_OK(loans);
  ASSERT_NE(loans->at(0), nullptr);
  EXPECT_TRUE(SameOpenFile(loans->at(0)->get(), mine.get()));
}

TEST_F(SessionRegistryTest, LendsNothingToAnotherUser) {
  const Opened first = Open(Terms(0, 2));
  ASSERT_OK(Borrow(first).get());
  SendOpenShard(first, OpenShard(O_RDONLY));
  PeerIdentity stranger = self_.peer();
  ++stranger.uid;
  const Opened second = Open(Terms(1, 2), stranger);
  const Loans loans = Borrow(second).get();
  ASSERT_OK(loans);
  EXPECT_EQ(loans->at(0), nullptr);
}

TEST_F(SessionRegistryTest, LendsNothingThatIsOpenForMoreThanReading) {
  const Opened first = Open(Terms(0, 2));
  ASSERT_OK(Borrow(first).get());
  SendOpenShard(first, OpenShard(O_RDWR));
  const Loans loans = Borrow(Open(Terms(1, 2))).get();
  ASSERT_OK(loans);
  EXPECT_EQ(loans->at(0), nullptr);
}

TEST_F(SessionRegistryTest, BorrowersWaitNoLongerThanTheirTime) {
  const Opened first = Open(Terms(0, 2));
  ASSERT_OK(Borrow(first).get());
  std::future<Loans> waiting = Borrow(Open(Terms(1, 2)));
  EXPECT_LE(registry_.Tick(), absl::UnixEpoch() + kLendTimeout);
  Advance(kLendTimeout);
  registry_.Tick();
  const Loans loans = waiting.get();
  ASSERT_OK(loans);
  EXPECT_EQ(loans->at(0), nullptr);
}

TEST_F(SessionRegistryTest, ShardsAreNamedOnceInOrderAndBeforeTheirDescriptorsCome) {
  SessionTerms terms = Terms(0, 1);
  terms.shards.push_back({.name = "model-2.safetensors", .size_bytes = 4096, .mtime_ns = 1});
  const Opened rank = Open(terms);
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("were named"));
  EXPECT_THAT(registry_.AdmitNamedShards(rank.id, 1, 1).status(), refused);
  EXPECT_THAT(registry_.AdmitNamedShards(rank.id, 0, 3).status(), refused);
  EXPECT_OK(registry_.AdmitNamedShards(rank.id, 0, 1));
  EXPECT_THAT(registry_.AdmitNamedShards(rank.id, 0, 1).status(), refused);
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(OpenShard(O_RDONLY));
  EXPECT_OK(AddShards(rank.id, 0, std::move(descriptors)));
  EXPECT_THAT(registry_.AdmitNamedShards(rank.id, 1, 1).status(), refused);
  registry_.Close(rank.id);
  EXPECT_THAT(registry_.AdmitNamedShards(rank.id, 0, 1).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ended")));
}

TEST_F(SessionRegistryTest, NothingThatWasLentStaysWhenAllSessionsHaveEnded) {
  std::weak_ptr<const UniqueFd> lent;
  {
    const Opened first = Open(Terms(0, 2));
    ASSERT_OK(Borrow(first).get());
    SendOpenShard(first, OpenShard(O_RDONLY));
    const Opened second = Open(Terms(1, 2));
    Loans loans = Borrow(second).get();
    ASSERT_OK(loans);
    lent = loans->at(0);
    registry_.Close(first.id);
    registry_.Close(second.id);
  }
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_TRUE(lent.expired());
}

TEST_F(SessionQuotaTest, LoansTakeNoPlaceThatDescriptorsNeed) {
  // Of three descriptors: one that is named, one to come, and one of the other session.
  SendShards(Open(Terms(0, 3)));
  const Opened second = Open(Terms(1, 3));
  EXPECT_OK(registry_.AdmitNamedShards(second.id, 0, 1));
  const Opened third = Open(Terms(2, 3));
  EXPECT_THAT(registry_.AdmitNamedShards(third.id, 0, 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("LimitNOFILE")));
  SendShards(second);
}

TEST_F(SessionRegistryTest, EverythingIsReleasedWhenTheSessionEnds) {
  const Opened rank = OpenReady(Terms(0, 1));
  rank.listener->WaitForDecision();
  registry_.Close(rank.id);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_EQ(store_.checkpoint(1), nullptr);
  EXPECT_TRUE(registry_.Snapshot().empty());
  EXPECT_THAT(registry_.FindByToken(rank.listener->token(), self_.peer()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("token")));
  // Ending it again, from wherever, does nothing.
  registry_.Close(rank.id);
  registry_.OnProcessExit(rank.id);
  EXPECT_THAT(AddShards(rank.id, 0, {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("ended")));
}

TEST_F(SessionRegistryTest, StrictDecisionComesToAllAtOnce) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  registry_.Tick();
  EXPECT_EQ(store_.checkpoint(1)->demanded(first.id), 2u) << "reading starts at the first open";
  EXPECT_FALSE(first.listener->has_decision());
  const Opened second = OpenReady(StrictTerms(1, 2));
  EXPECT_EQ(second.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(first.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
}

TEST_F(SessionRegistryTest, StrictDeadlineGivesNativeAndStopsReading) {
  SessionTerms terms = StrictTerms(0, 2);
  terms.agreement_timeout = absl::Seconds(5);
  const Opened first = OpenReady(terms);
  const absl::Time next = registry_.Tick();
  EXPECT_LE(next, absl::UnixEpoch() + absl::Seconds(5));
  Advance(absl::Seconds(5));
  registry_.Tick();
  const SessionDecision decision = first.listener->WaitForDecision();
  EXPECT_EQ(decision.effective, SessionPolicy::kNative);
  EXPECT_EQ(decision.reason_class, ReasonClass::kGroupIncomplete);
  EXPECT_THAT(decision.reason, HasSubstr("rank 1"));
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
  // A demand that still comes is not read.
  registry_.AddDemand(first.id, {{.tensor_index = 0, .begin = 0, .end = 0}});
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
}

TEST_F(SessionRegistryTest, AStrictGroupDoesNotWaitForARankWhoseShardsAreDamaged) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  store_.FailWith(absl::InvalidArgumentError("model.safetensors: the header is damaged"));
  const Opened second = Open(StrictTerms(1, 2));
  SendShards(second);
  EXPECT_FALSE(second.listener->WaitForEnd().ok());
  const SessionDecision decision = first.listener->WaitForDecision();
  EXPECT_EQ(decision.effective, SessionPolicy::kNative);
  EXPECT_EQ(decision.reason_class, ReasonClass::kGroupIncomplete);
  EXPECT_THAT(decision.reason, AllOf(HasSubstr("rank 1 (pid "), HasSubstr("header is damaged")));
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
}

TEST_F(SessionRegistryTest, AStrictGroupDoesNotWaitForARankThatLeavesBeforeItIsReady) {
  const IdleProcess other;
  const Opened first = OpenReady(StrictTerms(0, 3));
  const Opened second = Open(StrictTerms(1, 3));
  EXPECT_FALSE(first.listener->has_decision());
  registry_.Close(second.id);
  EXPECT_THAT(first.listener->WaitForDecision().reason, HasSubstr("it closed its session"));
  // And of another launch, one that dies.
  SessionTerms terms = StrictTerms(0, 2);
  terms.launch_nonce = "next";
  const Opened survivor = OpenReady(terms);
  terms.local_rank = 1;
  const Opened killed = Open(terms, other.peer());
  registry_.OnProcessExit(killed.id);
  EXPECT_THAT(survivor.listener->WaitForDecision().reason, HasSubstr("the process has exited"));
}

TEST_F(SessionRegistryTest, AStrictRankIsToldOfOneThatFailedBeforeItCame) {
  registry_.Close(Open(StrictTerms(1, 2)).id);
  const Opened late = OpenReady(StrictTerms(0, 2));
  EXPECT_THAT(late.listener->WaitForDecision().reason, HasSubstr("rank 1 (pid "));
  registry_.Close(late.id);
  // Whoever failed tries again: this is another launch.
  const Opened again = OpenReady(StrictTerms(1, 2));
  const Opened other = OpenReady(StrictTerms(0, 2));
  EXPECT_EQ(other.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(again.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
  registry_.Close(again.id);
  registry_.Close(other.id);
  // Nor is it said for ever.
  registry_.Close(Open(StrictTerms(1, 2)).id);
  Advance(kRankFailureKept);
  EXPECT_FALSE(OpenReady(StrictTerms(0, 2)).listener->has_decision());
}

TEST_F(SessionRegistryTest, AStrictRankThatReplacesADeadOneIsNoFailure) {
  auto dead = std::make_unique<IdleProcess>();
  const Opened first = OpenReady(StrictTerms(0, 2));
  Open(StrictTerms(1, 2), dead->peer());
  dead->Kill();
  const Opened second = OpenReady(StrictTerms(1, 2));
  EXPECT_EQ(second.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(first.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
}

TEST_F(SessionQuotaTest, AStrictGroupDoesNotWaitForARankThatIsRefused) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  for (const char* path : {"/models/draft", "/models/other"}) {
    SessionTerms other = Terms(0, 1);
    other.path = path;
    Open(other);
  }
  const auto refused = TryOpen(StrictTerms(1, 2));
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(first.listener->WaitForDecision().reason,
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr(refused.status().message())));
}

TEST_F(SessionQuotaTest, AStrictGroupIsToldWhyTheDescriptorsOfARankWereRefused) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  SessionTerms many = StrictTerms(1, 2);
  for (int i = 0; i < 9; ++i) many.shards.push_back(many.shards.front());
  const Opened second = Open(many);
  const auto refused = registry_.AdmitShards(second.id, 0, 10);
  ASSERT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  // Its client loads natively then.
  registry_.Close(second.id);
  EXPECT_THAT(first.listener->WaitForDecision().reason,
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr(refused.status().message())));
}

TEST_F(SessionRegistryTest, GroupIsForgottenWithItsLastSession) {
  SessionTerms native = Terms(0, 2);
  native.policy = SessionPolicy::kNative;
  const Opened first = OpenReady(native);
  EXPECT_EQ(first.listener->WaitForDecision().effective, SessionPolicy::kNative);
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
  const Opened second = OpenReady(Terms(1, 2));
  EXPECT_EQ(second.listener->WaitForDecision().effective, SessionPolicy::kNative);
  registry_.Close(first.id);
  const Opened again = OpenReady(Terms(0, 2));
  EXPECT_EQ(again.listener->WaitForDecision().effective, SessionPolicy::kNative);
  registry_.Close(second.id);
  registry_.Close(again.id);
  const Opened fresh = OpenReady(Terms(1, 2));
  EXPECT_EQ(fresh.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
}

TEST_F(SessionRegistryTest, OtherNonceAndOtherPathAreOtherGroups) {
  const Opened main = Open(Terms(0, 1));
  SessionTerms draft = Terms(0, 1);
  draft.path = "/models/draft";
  EXPECT_OK(TryOpen(draft));
  SessionTerms next_launch = Terms(0, 1);
  next_launch.launch_nonce = "2";
  EXPECT_OK(TryOpen(next_launch));
  EXPECT_THAT(TryOpen(Terms(0, 1)), StatusIs(absl::StatusCode::kAlreadyExists,
                                             HasSubstr(absl::StrCat("pid ", self_.peer().pid))));
}

TEST_F(SessionRegistryTest, DeadHolderIsReplaced) {
  IdleProcess first_process;
  const Opened first = OpenReady(Terms(0, 2), first_process.peer());
  IdleProcess second_process;
  EXPECT_THAT(TryOpen(Terms(0, 2), second_process.peer()),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr(absl::StrCat("pid ", first_process.peer().pid))));
  first_process.Kill();
  const Opened second = OpenReady(Terms(0, 2), second_process.peer());
  EXPECT_THAT(first.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("exited")));
  EXPECT_EQ(second.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
}

TEST_F(SessionRegistryTest, ExitOfTheProcessEndsTheSession) {
  SessionLoop loop(*exit_watch_, registry_);
  IdleProcess process;
  const Opened rank = Open(Terms(0, 1), process.peer());
  process.Kill();
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("exited")));
  EXPECT_TRUE(registry_.Snapshot().empty());
}

TEST_F(SessionRegistryTest, TokenServesItsOwnProcessOnly) {
  const Opened rank = Open(Terms(0, 1));
  const auto found = registry_.FindByToken(rank.listener->token(), self_.peer());
  ASSERT_OK(found);
  EXPECT_EQ(*found, rank.id);
  IdleProcess other;
  EXPECT_THAT(registry_.FindByToken(rank.listener->token(), other.peer()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("token")));
  SessionToken wrong = rank.listener->token();
  wrong[0] ^= 1;
  EXPECT_THAT(registry_.FindByToken(wrong, self_.peer()),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("token")));
}

TEST_F(SessionRegistryTest, DamagedCheckpointEndsTheSessionWithTheStoresError) {
  store_.FailWith(absl::InvalidArgumentError("a.safetensors: cut; b.safetensors: cut"));
  const Opened rank = Open(Terms(0, 1));
  SendShards(rank);
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a.safetensors"), HasSubstr("b.safetensors"))));
  EXPECT_OK(TryOpen(Terms(0, 1))) << "the seat is free again";
}

TEST_F(SessionRegistryTest, SessionThatEndsDuringItsPreparationHoldsNothing) {
  store_.Hold(true);
  const Opened rank = Open(Terms(0, 1));
  SendShards(rank);
  absl::Status delivered;
  registry_.WhenReady(rank.id, [&delivered](absl::StatusOr<SessionDelivery> delivery) {
    delivered = delivery.status();
  });
  registry_.Close(rank.id);
  EXPECT_THAT(delivered, StatusIs(absl::StatusCode::kCancelled, HasSubstr("closed")));
  store_.Hold(false);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_EQ(store_.checkpoint(1), nullptr);
}

TEST_F(SessionRegistryTest, DeliveryWaitsUntilReady) {
  const Opened rank = Open(Terms(0, 1));
  absl::Status too_early;
  registry_.WhenReady(rank.id, [&too_early](absl::StatusOr<SessionDelivery> delivery) {
    too_early = delivery.status();
  });
  EXPECT_THAT(too_early, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("0 of 1")));
  store_.Hold(true);
  SendShards(rank);
  std::atomic<bool> delivered = false;
  registry_.WhenReady(rank.id, [&delivered](absl::StatusOr<SessionDelivery> delivery) {
    delivered = delivery.ok() && delivery->catalog.valid() && delivery->board.valid();
  });
  EXPECT_FALSE(delivered);
  store_.Hold(false);
  rank.listener->WaitForDecision();
  EXPECT_TRUE(delivered);
}

TEST_F(SessionRegistryTest, ShardsOutOfOrderAreRefused) {
  const Opened rank = Open(Terms(0, 1));
  EXPECT_THAT(AddShards(rank.id, 1, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 of 1 have come")));
  std::vector<UniqueFd> two(2);
  EXPECT_THAT(AddShards(rank.id, 0, std::move(two)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 of 1 have come")));
}

TEST_F(SessionRegistryTest, ShardsThatCameAfterTheEndAreClosed) {
  const Opened rank = Open(Terms(0, 1));
  ASSERT_OK_AND_ASSIGN(auto charge, registry_.AdmitShards(rank.id, 0, 1));
  registry_.Close(rank.id);
  int ends[2] = {};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  std::vector<UniqueFd> writer;
  writer.emplace_back(ends[1]);
  EXPECT_THAT(registry_.AddShards(rank.id, 0, std::move(writer), std::move(charge)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ended")));
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "nobody holds the other end";
}

TEST_F(SessionRegistryTest, ShardsThatAreNotAsAnnouncedEndTheSession) {
  const Opened rank = Open(Terms(0, 1));
  ASSERT_OK_AND_ASSIGN(auto charge, registry_.AdmitShards(rank.id, 0, 1));
  registry_.RefuseShards(rank.id, {}, std::move(charge), "a batch of 1 came with 0");
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a batch of 1")));
}

TEST_F(SessionQuotaTest, OneUsersSessionsCountUntilTheirStorageLetsGo) {
  store_.Hold(true);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Opened hung = Open(Terms(rank, 4));
    SendShards(hung);
    registry_.Close(hung.id);
  }
  EXPECT_THAT(TryOpen(Terms(0, 4)).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("sessions-per-uid-max")));
  PeerIdentity other = self_.peer();
  other.uid += 1;
  EXPECT_OK(TryOpen(Terms(0, 4), other));
  store_.Hold(false);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_OK(TryOpen(Terms(1, 4)));
}

TEST_F(SessionQuotaTest, OneUsersDescriptorsAreLimited) {
  SessionTerms terms = Terms(0, 1);
  terms.shards = std::vector<ShardTerms>(4, terms.shards[0]);
  for (size_t i = 0; i < terms.shards.size(); ++i) terms.shards[i].name += std::to_string(i);
  const Opened rank = Open(terms);
  EXPECT_THAT(AddShards(rank.id, 0, std::vector<UniqueFd>(4)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("LimitNOFILE")));
  EXPECT_OK(AddShards(rank.id, 0, std::vector<UniqueFd>(3)));
}

TEST_F(SessionQuotaTest, SessionsOnOneCheckpointShareItsDescriptors) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    OpenReady(Terms(rank, 4)).listener->WaitForDecision();
  }
  // One descriptor for the checkpoint that all three have, so two are left.
  registry_.Close(registry_.Snapshot().front().id);
  SessionTerms terms = Terms(3, 4);
  terms.shards = std::vector<ShardTerms>(3, terms.shards[0]);
  for (size_t i = 0; i < terms.shards.size(); ++i) terms.shards[i].name += std::to_string(i);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  const Opened rank = Open(terms);
  EXPECT_THAT(AddShards(rank.id, 0, std::vector<UniqueFd>(3)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("LimitNOFILE")));
  EXPECT_OK(AddShards(rank.id, 0, std::vector<UniqueFd>(2)));
}

TEST_F(SessionRegistryTest, ConnectionsThatWaitForOneSessionAreLimited) {
  store_.Hold(true);
  const Opened rank = Open(Terms(0, 1));
  SendShards(rank);
  std::vector<absl::Status> answers;
  for (size_t i = 0; i <= kWaitersPerSessionMax; ++i) {
    registry_.WhenReady(rank.id, [&answers](absl::StatusOr<SessionDelivery> delivery) {
      answers.push_back(delivery.status());
    });
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("wait")));
  store_.Hold(false);
  rank.listener->WaitForDecision();
  EXPECT_EQ(answers.size(), kWaitersPerSessionMax + 1);
}

TEST_F(SessionRegistryTest, StorageThatDoesNotAnswerForTheHeadersEndsTheSession) {
  store_.Hold(true);
  const Opened rank = Open(Terms(0, 1));
  SendShards(rank);
  Advance(absl::Seconds(29));
  registry_.Tick();
  EXPECT_EQ(registry_.Snapshot().size(), 1u);
  Advance(absl::Seconds(2));
  registry_.Tick();
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("descriptor-timeout")));
  store_.Hold(false);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
}

TEST_F(SessionRegistryTest, DescriptorsThatDoNotComeEndTheSession) {
  const Opened rank = Open(Terms(0, 1));
  EXPECT_EQ(registry_.Tick(), absl::UnixEpoch() + absl::Seconds(30));
  Advance(absl::Seconds(30));
  registry_.Tick();
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("0 of 1")));
}

TEST_F(SessionRegistryTest, ProgressIsToldTwiceASecondAndOnceAtTheEnd) {
  const Opened rank = OpenReady(Terms(0, 1));
  rank.listener->WaitForDecision();
  const auto count = [&rank](const std::string& word) {
    const std::vector<std::string> events = rank.listener->events();
    return std::count(events.begin(), events.end(), word);
  };
  const std::shared_ptr<StagedCheckpointFake> checkpoint = store_.checkpoint(1);
  checkpoint->SetProgress({.wanted_bytes = 8192, .resident_bytes = 4096});
  for (int i = 0; i < 11; ++i) {
    const absl::Time next = registry_.Tick();
    EXPECT_LE(next, absl::FromUnixNanos(now_ns_.load()) + absl::Milliseconds(100));
    Advance(absl::Milliseconds(100));
  }
  EXPECT_EQ(count("progress"), 3) << "at 0, 0.5 and 1 s";
  checkpoint->SetProgress({.wanted_bytes = 8192, .resident_bytes = 8192, .complete = true});
  registry_.Tick();
  registry_.Tick();
  EXPECT_EQ(count("complete"), 1);
  registry_.RequestProgress(rank.id, 17);
  EXPECT_EQ(count("complete"), 2) << "and whenever it is asked for";
  EXPECT_EQ(registry_.Snapshot()[0].major_faults, 17u);
}

TEST_F(SessionRegistryTest, DemandAndConsumptionAreCheckedAndCounted) {
  SessionTerms terms = Terms(0, 1);
  terms.demand_follows = true;
  const Opened rank = OpenReady(terms);
  rank.listener->WaitForDecision();
  const std::shared_ptr<StagedCheckpointFake> checkpoint = store_.checkpoint(1);
  EXPECT_EQ(checkpoint->demanded(rank.id), 0u);
  registry_.AddDemand(rank.id, {{.tensor_index = 1, .begin = 0, .end = 0}});
  EXPECT_EQ(checkpoint->demanded(rank.id), 1u);
  registry_.MarkConsumed(rank.id, {0, 0});
  registry_.MarkConsumed(rank.id, {0});
  EXPECT_EQ(registry_.Snapshot()[0].consumed_bytes, StagedCheckpointFake::kTensorBytes);
  registry_.AddDemand(rank.id, {{.tensor_index = 2, .begin = 0, .end = 0}});
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no such tensor")));
  EXPECT_EQ(checkpoint->sessions_demanding(), 0u);
}

TEST_F(SessionRegistryTest, RefusesWhatIsOutsideItsLimits) {
  SessionTerms terms = Terms(2, 2);
  EXPECT_THAT(TryOpen(terms),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_rank")));
  terms = Terms(0, 0);
  EXPECT_THAT(TryOpen(terms),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_size")));
  terms = Terms(0, 100'000);
  EXPECT_THAT(TryOpen(terms),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_size")));
  terms = Terms(0, 1);
  terms.group_name.clear();
  EXPECT_THAT(TryOpen(terms),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group.name")));
  terms = Terms(0, 1);
  terms.group_name.assign(257, 'x');
  EXPECT_THAT(TryOpen(terms),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group.name")));
  terms = Terms(0, 1);
  terms.shards[0].name = "../escape";
  EXPECT_THAT(TryOpen(terms), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("escape")));
  terms.shards.clear();
  EXPECT_THAT(TryOpen(terms), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shards")));
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_OK(TryOpen(Terms(rank, 5)));
  EXPECT_THAT(TryOpen(Terms(4, 5)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("sessions-max")));
  EXPECT_THAT(TryOpen(Terms(0, 4)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("sessions-max")));
}

TEST_F(SessionRegistryTest, DrainTellsEverySessionAndEndsThem) {
  const Opened ready = OpenReady(Terms(0, 2));
  ready.listener->WaitForDecision();
  SessionTerms strict = StrictTerms(0, 3);
  strict.launch_nonce = "strict";
  const Opened waiting = OpenReady(strict);
  registry_.BeginDrain();
  EXPECT_THAT(TryOpen(Terms(1, 2)), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain")));
  registry_.EndAll();
  EXPECT_THAT(ready.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain")));
  EXPECT_THAT(waiting.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain")));
  EXPECT_THAT(waiting.listener->events(),
              ElementsAre("opened", "checkpoint 2", "draining", "ended"));
}

TEST_F(SessionRegistryTest, DrainSaysWhenStorageStillHoldsAThread) {
  store_.Hold(true);
  const Opened rank = Open(Terms(0, 1));
  SendShards(rank);
  registry_.BeginDrain();
  registry_.EndAll();
  EXPECT_THAT(rank.listener->WaitForEnd(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("drain")));
  EXPECT_FALSE(registry_.WaitUntilIdle(absl::Now()));
  store_.Hold(false);
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
}

TEST_F(SessionRegistryTest, NeitherEndNorOpenWaitsForStorage) {
  store_.Hold(true);
  const Opened hanging = Open(Terms(0, 2));
  SendShards(hanging);
  registry_.Close(hanging.id);
  EXPECT_OK(hanging.listener->WaitForEnd());
  const Opened again = Open(Terms(0, 2));
  SendShards(again);
  EXPECT_FALSE(again.listener->has_decision());
  store_.Hold(false);
  EXPECT_EQ(again.listener->WaitForDecision().effective, SessionPolicy::kRankStripedReadAhead);
}

// Room for one checkpoint of the fake store, not for two.
class AdmissionTest : public SessionRegistryTest {
 protected:
  explicit AdmissionTest(uint64_t memory_limit_bytes = 2 * StagedCheckpointFake::kShardBytes - 1)
      : SessionRegistryTest({.memory_bytes = memory_limit_bytes}) {}
  explicit AdmissionTest(const Limits& limits) : SessionRegistryTest(limits) {}

  static SessionTerms TermsOf(int64_t checkpoint, uint32_t rank, uint32_t size) {
    SessionTerms terms = Terms(rank, size);
    terms.path = absl::StrCat("/models/", checkpoint);
    terms.shards[0].mtime_ns = checkpoint;
    return terms;
  }
  SessionPolicy PolicyOf(const Opened& opened) {
    return opened.listener->WaitForDecision().effective;
  }
};

// Memory for all; for one user, that of one checkpoint.
class UserShareTest : public AdmissionTest {
 protected:
  static constexpr uint64_t kShare = 2 * StagedCheckpointFake::kShardBytes - 1;
  UserShareTest() : AdmissionTest(Limits{.staged_bytes_per_user = kShare}) {
    other_user_ = self_.peer();
    ++other_user_.uid;
  }
  PeerIdentity other_user_;
};

TEST_F(UserShareTest, OneMoreCheckpointOfOneUserIsNativeWithTheNumbers) {
  const Opened a = OpenReady(TermsOf(1, 0, 1));
  EXPECT_EQ(PolicyOf(a), SessionPolicy::kRankStripedReadAhead);
  const Opened b = OpenReady(TermsOf(2, 0, 1));
  const SessionDecision refused = b.listener->WaitForDecision();
  EXPECT_EQ(refused.effective, SessionPolicy::kNative);
  EXPECT_FALSE(refused.activated);
  EXPECT_EQ(refused.reason_class, ReasonClass::kNotEnoughMemory);
  EXPECT_EQ(refused.reason,
            absl::StrCat("checkpoint needs 4.00 KiB of memory, 3.99 KiB available: "
                         "staged-bytes-per-uid-max 7.99 KiB - 4.00 KiB of other checkpoints of "
                         "uid ",
                         self_.peer().uid));
  EXPECT_EQ(store_.checkpoint(2)->sessions_demanding(), 0u);
  EXPECT_EQ(ledger_.leased_bytes(), StagedCheckpointFake::kShardBytes);
  // Another user has his own share, and the same user all that he has already.
  SessionTerms of_others = TermsOf(2, 0, 1);
  of_others.group_name = "others";
  const Opened others = OpenReady(of_others, other_user_);
  EXPECT_EQ(PolicyOf(others), SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(registry_.StagedBytesOfUsers().size(), 2u);
}

TEST_F(UserShareTest, SessionsAndGroupsOnOneCheckpointCountOnceUntilTheLastOneEnds) {
  const Opened first = OpenReady(TermsOf(1, 0, 2));
  const Opened second = OpenReady(TermsOf(1, 1, 2));
  SessionTerms other_group = TermsOf(1, 0, 1);
  other_group.group_name = "other";
  const Opened third = OpenReady(other_group);
  EXPECT_EQ(PolicyOf(third), SessionPolicy::kRankStripedReadAhead);
  EXPECT_THAT(registry_.StagedBytesOfUsers(),
              ElementsAre(std::pair(self_.peer().uid, StagedCheckpointFake::kShardBytes)));
  registry_.Close(first.id);
  registry_.Close(third.id);
  EXPECT_EQ(registry_.StagedBytesOfUsers().size(), 1u);
  registry_.Close(second.id);
  EXPECT_TRUE(registry_.StagedBytesOfUsers().empty());
  EXPECT_EQ(PolicyOf(OpenReady(TermsOf(2, 0, 1))), SessionPolicy::kRankStripedReadAhead);
}

class NoRoomTest : public AdmissionTest {
 protected:
  NoRoomTest() : AdmissionTest(StagedCheckpointFake::kShardBytes - 1) {}
};

TEST_F(NoRoomTest, TheWholeGroupGetsNativeWithTheNumbersAlsoWhoAskedByName) {
  const Opened first = OpenReady(Terms(0, 2));
  SessionTerms by_name = Terms(1, 2);
  by_name.policy = SessionPolicy::kRankStripedReadAhead;
  const Opened second = OpenReady(by_name);
  for (const Opened& rank : {first, second}) {
    const SessionDecision decision = rank.listener->WaitForDecision();
    EXPECT_EQ(decision.effective, SessionPolicy::kNative);
    EXPECT_FALSE(decision.activated);
    EXPECT_EQ(decision.reason_class, ReasonClass::kNotEnoughMemory);
    EXPECT_EQ(decision.reason,
              "checkpoint needs 4.00 KiB of memory, 3.99 KiB available: memory-limit 3.99 KiB");
  }
  // Nothing is read, whatever they ask for.
  registry_.AddDemand(first.id, {{.tensor_index = 0, .begin = 0, .end = 0}});
  const uint64_t extent = 0;
  registry_.AddUrgent(second.id, {&extent, 1});
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
  EXPECT_EQ(ledger_.leased_bytes(), 0u);
  EXPECT_TRUE(registry_.StagedBytesOfUsers().empty());
}

TEST_F(NoRoomTest, AStrictGroupIsToldTogetherAndNothingIsReadMeanwhile) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  registry_.Tick();
  EXPECT_FALSE(first.listener->has_decision());
  EXPECT_EQ(store_.checkpoint(1)->sessions_demanding(), 0u);
  const Opened second = OpenReady(StrictTerms(1, 2));
  for (const Opened& rank : {first, second}) {
    const SessionDecision decision = rank.listener->WaitForDecision();
    EXPECT_EQ(decision.effective, SessionPolicy::kNative);
    EXPECT_EQ(decision.reason_class, ReasonClass::kNotEnoughMemory);
    EXPECT_FALSE(decision.activated);
  }
}

TEST_F(NoRoomTest, NativeIsGivenForItsOwnReason) {
  SessionTerms native = Terms(0, 1);
  native.policy = SessionPolicy::kNative;
  const Opened rank = OpenReady(native);
  EXPECT_EQ(rank.listener->WaitForDecision().reason_class, ReasonClass::kRequested);
  EXPECT_TRUE(registry_.StagedBytesOfUsers().empty());
}

TEST_F(NoRoomTest, PagesInMemoryThatOthersPayForAreCountedAsSuch) {
  machine_.Write("proc/self/cgroup", "0::/x\n");
  machine_.Write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  machine_.Write("sys/fs/cgroup/x/memory.max", "2048\n");
  machine_.Write("sys/fs/cgroup/x/memory.current", "0\n");
  machine_.Write("sys/fs/cgroup/x/memory.stat", "file 0\n");
  SessionTerms native = Terms(0, 2);
  native.policy = SessionPolicy::kNative;
  const Opened holder = OpenReady(native);
  store_.checkpoint(1)->SetCachedBytes(3000);
  SessionTerms other_group = Terms(0, 1);
  other_group.group_name = "other";
  const Opened rank = OpenReady(other_group);
  // The cgroup has 1024 bytes and need not pay for 3000, which is not what bounds any more.
  EXPECT_THAT(rank.listener->WaitForDecision().reason,
              AllOf(HasSubstr("3.92 KiB available"), HasSubstr("+ 2.92 KiB in memory already")));
}

TEST_F(AdmissionTest, WhatIsUnderLeaseIsNotPushedOut) {
  const Opened a = OpenReady(TermsOf(1, 0, 1));
  EXPECT_EQ(PolicyOf(a), SessionPolicy::kRankStripedReadAhead);
  const Opened b = OpenReady(TermsOf(2, 0, 1));
  const SessionDecision refused = b.listener->WaitForDecision();
  EXPECT_EQ(refused.effective, SessionPolicy::kNative);
  EXPECT_THAT(refused.reason, HasSubstr("- 4.00 KiB leased to other checkpoints"));
  registry_.Close(b.id);
  registry_.Close(a.id);
  const Opened again = OpenReady(TermsOf(2, 0, 1));
  EXPECT_EQ(PolicyOf(again), SessionPolicy::kRankStripedReadAhead);
}

TEST_F(AdmissionTest, TheLeaseEndsWithTheLastSessionOfAllGroupsOnTheCheckpoint) {
  const Opened first = OpenReady(TermsOf(1, 0, 2));
  const Opened second = OpenReady(TermsOf(1, 1, 2));
  SessionTerms other_group = TermsOf(1, 0, 1);
  other_group.group_name = "other";
  const Opened third = OpenReady(other_group);
  EXPECT_EQ(PolicyOf(third), SessionPolicy::kRankStripedReadAhead);
  EXPECT_EQ(ledger_.leased_bytes(), StagedCheckpointFake::kShardBytes);
  registry_.Close(first.id);
  registry_.Close(third.id);
  EXPECT_EQ(ledger_.leased_bytes(), StagedCheckpointFake::kShardBytes);
  registry_.Close(second.id);
  EXPECT_EQ(ledger_.leased_bytes(), 0u);
}

TEST_F(AdmissionTest, AGroupKeepsItsAnswerWhateverMemoryBecomes) {
  const Opened a = OpenReady(TermsOf(1, 0, 1));
  const Opened refused = OpenReady(TermsOf(2, 0, 2));
  EXPECT_EQ(PolicyOf(refused), SessionPolicy::kNative);
  registry_.Close(a.id);
  const Opened late = OpenReady(TermsOf(2, 1, 2));
  EXPECT_EQ(PolicyOf(late), SessionPolicy::kNative);
  EXPECT_EQ(late.listener->WaitForDecision().reason, refused.listener->WaitForDecision().reason);
}

TEST_F(AdmissionTest, AnAdmittedGroupsLateRankIsReadForThoughAnotherTookTheMemory) {
  // The first rank sees checkpoint 1 and leaves; one that sees another keeps the group alive.
  const Opened first = OpenReady(TermsOf(1, 0, 3));
  SessionTerms other_view = TermsOf(1, 1, 3);
  other_view.shards[0].mtime_ns = 3;
  const Opened alone = OpenReady(other_view);
  EXPECT_EQ(PolicyOf(alone), SessionPolicy::kNative);
  registry_.Close(first.id);
  const Opened b = OpenReady(TermsOf(2, 0, 1));
  EXPECT_EQ(PolicyOf(b), SessionPolicy::kRankStripedReadAhead);
  const Opened late = OpenReady(TermsOf(1, 2, 3));
  EXPECT_EQ(PolicyOf(late), SessionPolicy::kRankStripedReadAhead) << "one decision a group";
  EXPECT_EQ(ledger_.leased_bytes(), 2 * StagedCheckpointFake::kShardBytes);
}

TEST_F(AdmissionTest, AStrictGroupThatEndsNativeGivesItsMemoryBack) {
  SessionTerms strict = StrictTerms(0, 2);
  strict.agreement_timeout = absl::Seconds(5);
  const Opened rank = OpenReady(strict);
  registry_.Tick();
  EXPECT_EQ(ledger_.leased_bytes(), StagedCheckpointFake::kShardBytes);
  Advance(absl::Seconds(5));
  registry_.Tick();
  EXPECT_EQ(rank.listener->WaitForDecision().reason_class, ReasonClass::kGroupIncomplete);
  EXPECT_EQ(ledger_.leased_bytes(), 0u);
}

TEST_F(AdmissionTest, AStrictRankThatTakesOverTheGroupIsComparedAndReadFor) {
  const Opened first = OpenReady(StrictTerms(0, 2));
  SessionTerms other_view = StrictTerms(1, 2);
  other_view.shards[0].mtime_ns = 3;
  const Opened second = OpenReady(other_view);
  // All are ready and do not agree: that decides. So the first one leaves before.
  EXPECT_EQ(second.listener->WaitForDecision().reason_class, ReasonClass::kSignatureMismatch);
  registry_.Close(first.id);
  registry_.Close(second.id);

  const Opened early = OpenReady(StrictTerms(0, 3));
  other_view = StrictTerms(1, 3);
  other_view.shards[0].mtime_ns = 3;
  const Opened heir = OpenReady(other_view);
  EXPECT_EQ(store_.checkpoint(3)->demanded(heir.id), 0u);
  registry_.Close(early.id);
  EXPECT_EQ(store_.checkpoint(3)->demanded(heir.id), 2u);
  EXPECT_EQ(ledger_.leased_bytes(), StagedCheckpointFake::kShardBytes);
}

// Many threads open, prepare, ask and end at once; what is left in the end is nothing.
TEST_F(SessionRegistryTest, SurvivesEverythingAtOnce) {
  SessionLoop loop(*exit_watch_, registry_);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([this, rank] {
      for (int i = 0; i < 50; ++i) {
        const Opened opened = Open(Terms(rank, 4));
        SendShards(opened);
        registry_.WhenReady(opened.id, [](absl::StatusOr<SessionDelivery>) {});
        if (i % 3 == 0) opened.listener->WaitForDecision();
        registry_.AddUrgent(opened.id, {});
        registry_.RequestProgress(opened.id, 1);
        registry_.Close(opened.id);
        const absl::Status ended = opened.listener->WaitForEnd();
        EXPECT_NE(ended.code(), absl::StatusCode::kUnknown);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(registry_.WaitUntilIdle(absl::Now() + kPatience));
  EXPECT_TRUE(registry_.Snapshot().empty());
  EXPECT_EQ(store_.checkpoint(1), nullptr);
  EXPECT_EQ(ledger_.leased_bytes(), 0u);
}

}  // namespace
}  // namespace forestage
