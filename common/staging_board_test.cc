#include "common/staging_board.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "common/child_process.h"
#include "common/errno_status.h"
#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

absl::Time Far() { return absl::Now() + absl::Seconds(60); }
absl::Time Near() { return absl::Now() + absl::Milliseconds(30); }

std::unique_ptr<StagingBoard> MakeBoard(uint64_t extent_count) {
  absl::StatusOr<std::unique_ptr<StagingBoard>> board =
      StagingBoard::Create({.extent_count = extent_count, .extent_bytes = kMiB, .generation = 77});
  EXPECT_OK(board);
  return *std::move(board);
}

// As a rank does it: from a descriptor of its own.
absl::StatusOr<std::unique_ptr<StagingBoardView>> MapBoard(const StagingBoard& board) {
  return StagingBoardView::Map(UniqueFd(fcntl(board.fd(), F_DUPFD_CLOEXEC, 0)));
}

int64_t MonotonicNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// A board whose every byte the test writes, as a broken or hostile daemon would.
class HandMadeBoard {
 public:
  explicit HandMadeBoard(uint64_t extent_count)
      : HandMadeBoard(extent_count, kBoardHeaderBytes + extent_count) {}
  HandMadeBoard(uint64_t extent_count, uint64_t file_bytes)
      : fd_(memfd_create("hand-made", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(file_bytes)), 0);
    mapping_ = FileMapping::MapReadWrite(fd_.get(), std::max(file_bytes, PageBytes())).value();
    if (file_bytes < sizeof(BoardHeader)) return;
    new (mapping_.writable_bytes().data()) BoardHeader{
        .magic = kBoardMagic,
        .layout_version = kBoardLayoutVersion,
        .header_bytes = kBoardHeaderBytes,
        .extent_count = extent_count,
        .extent_bytes = kMiB,
        .generation = 5,
        .heartbeat_ns = MonotonicNow(),
        .change_count = 0,
        .phase = static_cast<uint32_t>(BoardPhase::kServing),
        .held_back_count = 0,
    };
  }

  BoardHeader& header() { return *reinterpret_cast<BoardHeader*>(bytes().data()); }
  absl::Span<std::byte> bytes() { return mapping_.writable_bytes(); }
  void Seal() { EXPECT_EQ(fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0); }
  absl::StatusOr<std::unique_ptr<StagingBoardView>> Map() const {
    return StagingBoardView::Map(fd_);
  }

 private:
  UniqueFd fd_;
  FileMapping mapping_;
};

// Lets one process tell another that it has come to a point.
class Gate {
 public:
  Gate() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end_.Reset(ends[0]);
    write_end_.Reset(ends[1]);
  }
  void Open() const { EXPECT_EQ(write(write_end_.get(), "x", 1), 1); }
  void Pass() const {
    char byte = 0;
    EXPECT_EQ(read(read_end_.get(), &byte, 1), 1);
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
};

TEST(StagingBoardTest, ANewBoardIsAbsentThroughoutAndSaysItsSizes) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(3);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  EXPECT_EQ(view->extent_count(), 3u);
  EXPECT_EQ(view->extent_bytes(), kMiB);
  EXPECT_EQ(view->generation(), 77u);
  EXPECT_FALSE(view->daemon_gone());
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(view->state(i), ExtentState::kAbsent);
}

TEST(StagingBoardTest, ACheckpointWithoutExtentsHasABoardToo) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(0);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  EXPECT_EQ(view->extent_count(), 0u);
  EXPECT_EQ(view->state(0), ExtentState::kFailed);
}

TEST(StagingBoardTest, RefusesMoreExtentsThanItsLimit) {
  EXPECT_THAT(
      StagingBoard::Create(
          {.extent_count = kBoardExtentCountMax + 1, .extent_bytes = kMiB, .generation = 1}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("8388609 extents")));
}

TEST(StagingBoardTest, ViewsSeeEveryStateOfEveryExtent) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(5);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  for (uint64_t i = 0; i < 5; ++i) board->SetState(i, static_cast<ExtentState>(i));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(board->state(i), static_cast<ExtentState>(i));
    EXPECT_EQ(view->state(i), static_cast<ExtentState>(i));
  }
}

TEST(StagingBoardTest, MovesAStateOnlyFromTheExpectedOne) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  EXPECT_TRUE(board->CompareAndSetState(0, ExtentState::kAbsent, ExtentState::kQueued));
  EXPECT_FALSE(board->CompareAndSetState(0, ExtentState::kAbsent, ExtentState::kReading));
  EXPECT_EQ(board->state(0), ExtentState::kQueued);
}

TEST(StagingBoardTest, MovesThoseOfARangeThatAreInTheExpectedState) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(5);
  board->SetState(2, ExtentState::kResident);
  board->CompareAndSetStates(1, 4, ExtentState::kAbsent, ExtentState::kQueued);
  board->CompareAndSetStates(5, 5, ExtentState::kAbsent, ExtentState::kQueued);
  const ExtentState expected[] = {ExtentState::kAbsent, ExtentState::kQueued,
                                  ExtentState::kResident, ExtentState::kQueued,
                                  ExtentState::kAbsent};
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(board->state(i), expected[i]) << i;
}

TEST(StagingBoardTest, RanksCannotWriteToIt) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  const UniqueFd rank(fcntl(board->fd(), F_DUPFD_CLOEXEC, 0));
  EXPECT_EQ(ErrnoOf(FileMapping::MapReadWrite(rank.get(), kBoardHeaderBytes + 1).status()), EPERM);
  EXPECT_EQ(pwrite(rank.get(), "x", 1, kBoardHeaderBytes), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(StagingBoardTest, WaitingReturnsAtOnceWhatIsSettled) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(2);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  board->SetState(0, ExtentState::kResident);
  board->SetState(1, ExtentState::kFailed);
  EXPECT_EQ(view->WaitFor(0, absl::InfinitePast()), ExtentState::kResident);
  EXPECT_EQ(view->WaitFor(1, absl::InfiniteFuture()), ExtentState::kFailed);
  EXPECT_EQ(view->WaitFor(2, absl::InfiniteFuture()), ExtentState::kFailed);
}

TEST(StagingBoardTest, WaitingEndsAtTheDeadlineWithTheStateLastSeen) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  EXPECT_EQ(view->WaitFor(0, absl::InfinitePast()), ExtentState::kAbsent);
  board->SetState(0, ExtentState::kReading);
  const absl::Time deadline = Near();
  EXPECT_EQ(view->WaitFor(0, deadline), ExtentState::kReading);
  EXPECT_GE(absl::Now(), deadline);
}

TEST(StagingBoardTest, WaitingEndsWhenCancelled) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  std::atomic<bool> cancelled{false};
  std::thread waiter([&] {
    EXPECT_EQ(view->WaitFor(0, absl::InfiniteFuture(), &cancelled), ExtentState::kAbsent);
    EXPECT_TRUE(cancelled.load());
  });
  cancelled.store(true);
  for (int beat = 0; beat < 3; ++beat) board->Beat();
  waiter.join();
}

// A lost wake-up costs a waiter 100 ms until it looks by itself, so that without wake-ups the
// deadline is missed by far.
TEST(StagingBoardTest, EveryChangeWakesAWaiterInAnotherProcess) {
  constexpr uint64_t kExtents = 1000;
  const std::unique_ptr<StagingBoard> board = MakeBoard(kExtents);
  const Gate about_to_wait;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  ChildProcess rank([&] {
    const auto view = MapBoard(*board);
    ASSERT_OK(view);
    // Goes on after a miss, since the daemon's side waits for the gate.
    uint64_t missed = 0;
    for (uint64_t i = 0; i < kExtents; ++i) {
      about_to_wait.Open();
      if ((*view)->WaitFor(i, deadline) != ExtentState::kResident) ++missed;
    }
    EXPECT_EQ(missed, 0u);
  });
  for (uint64_t i = 0; i < kExtents; ++i) {
    about_to_wait.Pass();
    board->Beat();
    board->SetState(i, ExtentState::kQueued);
    board->SetState(i, ExtentState::kReading);
    board->SetState(i, ExtentState::kResident);
  }
  EXPECT_EQ(rank.Wait(), 0);
}

TEST(StagingBoardTest, ManyWaitersInManyProcessesAllGetTheirExtent) {
  constexpr uint64_t kProcesses = 4;
  constexpr uint64_t kThreads = 8;
  const std::unique_ptr<StagingBoard> board = MakeBoard(kProcesses * kThreads);
  const Gate about_to_wait;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (uint64_t process = 0; process < kProcesses; ++process) {
    ranks.push_back(std::make_unique<ChildProcess>([&] {
      const auto view = MapBoard(*board);
      ASSERT_OK(view);
      std::vector<std::thread> waiters;
      for (uint64_t thread = 0; thread < kThreads; ++thread) {
        waiters.emplace_back([&, index = process * kThreads + thread] {
          about_to_wait.Open();
          EXPECT_EQ((*view)->WaitFor(index, Far()),
                    index % 5 == 0 ? ExtentState::kFailed : ExtentState::kResident);
        });
      }
      for (std::thread& waiter : waiters) waiter.join();
    }));
  }
  for (uint64_t i = 0; i < kProcesses * kThreads; ++i) about_to_wait.Pass();
  for (uint64_t i = kProcesses * kThreads; i-- > 0;) {
    board->Beat();
    board->SetState(i, i % 5 == 0 ? ExtentState::kFailed : ExtentState::kResident);
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0);
}

// Waiters of an old client sleep in plain FUTEX_WAIT; they still wake.
TEST(StagingBoardTest, AWaiterWithoutABitWakesForEveryExtent) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(100);
  const FileMapping mapping =
      FileMapping::MapReadOnly(board->fd(), kBoardHeaderBytes + 100).value();
  const auto* header = reinterpret_cast<const BoardHeader*>(mapping.bytes().data());
  for (const uint64_t index : {0, 31, 32, 99}) {
    const uint32_t seen = header->change_count.load();
    std::atomic<bool> woken{false};
    std::thread waiter([&] {
      // Ends with the wake-up, or at once if the change has come before it.
      const long result =
          syscall(SYS_futex, &header->change_count, FUTEX_WAIT, seen, nullptr, nullptr, 0);
      EXPECT_TRUE(result == 0 || errno == EAGAIN);
      woken.store(true);
    });
    board->SetState(index, ExtentState::kResident);
    waiter.join();
    EXPECT_TRUE(woken.load());
  }
}

// The kernel counts a thread's voluntary switches: one for the sleep, few for its 100 ms looks.
TEST(StagingBoardTest, AWaiterSleepsOnWhileOtherExtentsChange) {
  constexpr uint64_t kOthers = 31;
  constexpr int kRounds = 200;
  const std::unique_ptr<StagingBoard> board = MakeBoard(kOthers + 1);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  const Gate about_to_wait;
  std::atomic<int64_t> switches{0};
  std::thread waiter([&] {
    rusage before = {};
    rusage after = {};
    getrusage(RUSAGE_THREAD, &before);
    about_to_wait.Open();
    EXPECT_EQ(view->WaitFor(kOthers, Far()), ExtentState::kResident);
    getrusage(RUSAGE_THREAD, &after);
    switches.store(after.ru_nvcsw - before.ru_nvcsw);
  });
  about_to_wait.Pass();
  for (int round = 0; round < kRounds; ++round) {
    board->Beat();
    for (uint64_t i = 0; i < kOthers; ++i) {
      board->SetState(i, ExtentState::kReading);
      board->SetState(i, ExtentState::kResident);
    }
    std::this_thread::yield();
  }
  board->Beat();
  board->SetState(kOthers, ExtentState::kResident);
  waiter.join();
  // A waiter that woke with each change would have been switched out thousands of times.
  EXPECT_LT(switches.load(), kRounds);
}

TEST(StagingBoardTest, WritersOnSeveralThreadsAndReadersAgree) {
  constexpr uint64_t kExtents = 400;
  const std::unique_ptr<StagingBoard> board = MakeBoard(kExtents);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int lane = 0; lane < 4; ++lane) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kExtents; ++i) {
        if (!board->CompareAndSetState(i, ExtentState::kAbsent, ExtentState::kReading)) continue;
        taken.fetch_add(1);
        board->SetState(i, ExtentState::kResident);
      }
    });
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kExtents; ++i) {
        EXPECT_EQ(view->WaitFor(i, Far()), ExtentState::kResident);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), kExtents);
}

TEST(StagingBoardTest, ClosingWakesAllWaitersAndTheBoardStaysReadable) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(2);
  const Gate about_to_wait;
  ChildProcess rank([&] {
    const auto view = MapBoard(*board);
    ASSERT_OK(view);
    about_to_wait.Open();
    EXPECT_EQ((*view)->WaitFor(0, absl::InfiniteFuture()), ExtentState::kAbsent);
    EXPECT_TRUE((*view)->daemon_gone());
    EXPECT_EQ((*view)->state(1), ExtentState::kResident);
  });
  about_to_wait.Pass();
  board->SetState(1, ExtentState::kResident);
  board->Close();
  EXPECT_EQ(rank.Wait(), 0);
}

TEST(StagingBoardTest, WhatAKilledDaemonHasShownCanStillBeRead) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  ASSERT_OK_AND_ASSIGN(const auto view, MapBoard(*board));
  const Gate written;
  ChildProcess daemon([&] {
    board->SetState(0, ExtentState::kResident);
    written.Open();
    pause();
  });
  written.Pass();
  kill(daemon.pid(), SIGKILL);
  EXPECT_EQ(daemon.Wait(), 128 + SIGKILL);
  EXPECT_EQ(view->WaitFor(0, Far()), ExtentState::kResident);
}

TEST(StagingBoardTest, BeatingMovesTheHeartbeatOn) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping,
                       FileMapping::MapReadOnly(board->fd(), kBoardHeaderBytes));
  const auto* header = reinterpret_cast<const BoardHeader*>(mapping.bytes().data());
  const int64_t before = header->heartbeat_ns.load();
  const int64_t now = MonotonicNow();
  board->Beat();
  EXPECT_GE(header->heartbeat_ns.load(), now);
  EXPECT_GE(header->heartbeat_ns.load(), before);
}

TEST(StagingBoardTest, SaysThatWhatIsQueuedIsHeldBack) {
  const std::unique_ptr<StagingBoard> board = MakeBoard(1);
  ASSERT_OK_AND_ASSIGN(const auto view, StagingBoardView::Map(UniqueFd(dup(board->fd()))));
  const uint32_t before = view->held_back_count();
  board->Beat();
  board->SetState(0, ExtentState::kQueued);
  EXPECT_EQ(view->held_back_count(), before);
  board->NoteHeldBack();
  EXPECT_NE(view->held_back_count(), before);
}

TEST(StagingBoardViewTest, TakesAHandMadeBoardThatIsSound) {
  HandMadeBoard board(3);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  EXPECT_EQ(view->extent_count(), 3u);
  EXPECT_FALSE(view->daemon_gone());
}

TEST(StagingBoardViewTest, AHeartbeatThatStandsStillOrLiesInTheFutureMeansGone) {
  const int64_t timeout = absl::ToInt64Nanoseconds(kBoardHeartbeatTimeout);
  const int64_t second = 1'000'000'000;
  HandMadeBoard board(1);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  const auto gone_with = [&](int64_t heartbeat_ns) {
    board.header().heartbeat_ns.store(heartbeat_ns);
    return view->daemon_gone();
  };
  EXPECT_FALSE(gone_with(MonotonicNow()));
  EXPECT_FALSE(gone_with(MonotonicNow() - timeout / 2));
  EXPECT_TRUE(gone_with(MonotonicNow() - timeout - second));
  EXPECT_TRUE(gone_with(MonotonicNow() + timeout + second));
  EXPECT_TRUE(gone_with(INT64_MIN));
  EXPECT_TRUE(gone_with(INT64_MAX));
  EXPECT_TRUE(gone_with(-1));
}

TEST(StagingBoardViewTest, AClosedBoardIsToldFromADeadDaemon) {
  HandMadeBoard board(1);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  EXPECT_FALSE(view->closed());
  board.header().heartbeat_ns.store(0);
  EXPECT_TRUE(view->daemon_gone());
  EXPECT_FALSE(view->closed());
  board.header().phase.store(static_cast<uint32_t>(BoardPhase::kClosed));
  EXPECT_TRUE(view->closed());
}

TEST(StagingBoardViewTest, AWaiterSeesByItselfThatTheHeartbeatStandsStill) {
  HandMadeBoard board(1);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  std::thread waiter(
      [&] { EXPECT_EQ(view->WaitFor(0, absl::InfiniteFuture()), ExtentState::kAbsent); });
  board.header().heartbeat_ns.store(MonotonicNow() -
                                    2 * absl::ToInt64Nanoseconds(kBoardHeartbeatTimeout));
  waiter.join();
  EXPECT_TRUE(view->daemon_gone());
}

TEST(StagingBoardViewTest, EveryPhaseButServingMeansGone) {
  HandMadeBoard board(1);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  for (const uint32_t phase : {1u, 2u, 0x80000000u, 0xffffffffu}) {
    board.header().phase.store(phase);
    EXPECT_TRUE(view->daemon_gone()) << phase;
    EXPECT_EQ(view->WaitFor(0, absl::InfiniteFuture()), ExtentState::kAbsent);
  }
}

TEST(StagingBoardViewTest, StateBytesThatMeanNothingAreFailed) {
  HandMadeBoard board(1);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  for (int value = 0; value < 256; ++value) {
    board.bytes()[kBoardHeaderBytes] = static_cast<std::byte>(value);
    EXPECT_EQ(view->state(0),
              value <= kExtentStateMax ? static_cast<ExtentState>(value) : ExtentState::kFailed);
  }
  EXPECT_EQ(view->state(1), ExtentState::kFailed);
  EXPECT_EQ(view->state(UINT64_MAX), ExtentState::kFailed);
}

TEST(StagingBoardViewTest, RefusesOtherLayoutVersionsAndSaysWhatToDo) {
  for (const uint32_t version : {kBoardLayoutVersion - 1, kBoardLayoutVersion + 1, 0xffffffffu}) {
    HandMadeBoard board(1);
    board.header().layout_version = version;
    board.Seal();
    EXPECT_THAT(board.Map(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr(absl::StrCat("layout version ", version,
                                                             "; this program knows 1 only"))));
  }
}

TEST(StagingBoardViewTest, NamesEachConstantFieldThatIsWrong) {
  using Corruption = void (*)(BoardHeader&);
  const std::pair<Corruption, const char*> cases[] = {
      {[](BoardHeader& header) { header.magic = 0; }, "magic"},
      {[](BoardHeader& header) { header.magic = ~uint64_t{0}; }, "magic"},
      {[](BoardHeader& header) { header.header_bytes = 0; }, "header has 0 bytes"},
      {[](BoardHeader& header) { header.header_bytes = 129; }, "header has 129 bytes"},
      {[](BoardHeader& header) { header.extent_count = 2; }, "2 extents in a file of 131 bytes"},
      {[](BoardHeader& header) { header.extent_count = 4; }, "4 extents in a file of 131 bytes"},
      {[](BoardHeader& header) { header.extent_count = ~uint64_t{0} - 127; }, "extents in a file"},
      {[](BoardHeader& header) { header.extent_bytes = 0; }, "extents of 0 bytes"},
      {[](BoardHeader& header) { header.extent_bytes = 2048; }, "extents of 2048 bytes"},
      {[](BoardHeader& header) { header.extent_bytes = 3 * kMiB; }, "power of two"},
      {[](BoardHeader& header) { header.extent_bytes = uint64_t{1} << 63; }, "power of two"},
  };
  for (const auto& [corrupt, why] : cases) {
    HandMadeBoard board(3);
    corrupt(board.header());
    board.Seal();
    EXPECT_THAT(board.Map(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }
}

TEST(StagingBoardViewTest, NoSingleFlippedBitOfTheSizesGoesUnseen) {
  for (size_t bit = 0; bit < offsetof(BoardHeader, generation) * 8; ++bit) {
    HandMadeBoard board(3);
    board.bytes()[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    board.Seal();
    EXPECT_EQ(board.Map().status().code(), absl::StatusCode::kInvalidArgument) << "bit " << bit;
  }
}

TEST(StagingBoardViewTest, RefusesFilesShorterThanAHeader) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{kBoardHeaderBytes - 1}}) {
    HandMadeBoard board(0, bytes);
    board.Seal();
    EXPECT_THAT(board.Map(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr(absl::StrCat("of ", bytes, " bytes"))));
  }
}

TEST(StagingBoardViewTest, RefusesABoardThatCouldShrinkUnderItsReader) {
  const HandMadeBoard board(1);
  EXPECT_THAT(board.Map(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sealed")));
}

TEST(StagingBoardViewTest, RefusesDescriptorsThatAreNoBoard) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd write_end(ends[1]);
  EXPECT_EQ(StagingBoardView::Map(UniqueFd(ends[0])).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StagingBoardView::Map(UniqueFd()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StagingBoardViewTest, WhatChangesAfterMappingNeverLeadsOutsideOfTheBoard) {
  HandMadeBoard board(3);
  board.Seal();
  ASSERT_OK_AND_ASSIGN(const auto view, board.Map());
  board.header().extent_count = uint64_t{1} << 40;
  board.header().header_bytes = 0x7fffffff;
  EXPECT_EQ(view->extent_count(), 3u);
  EXPECT_EQ(view->state(2), ExtentState::kAbsent);
  EXPECT_EQ(view->state(3), ExtentState::kFailed);
  EXPECT_EQ(view->WaitFor(2, Near()), ExtentState::kAbsent);
}

}  // namespace
}  // namespace forestage
