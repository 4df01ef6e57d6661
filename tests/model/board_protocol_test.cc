// No wake-up is lost on the staging board: all orders of the atomic steps of writers and waiters,
// enumerated. The steps are the board's own, common/board_protocol.h.
#include "common/board_protocol.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/model/board_explorer.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One wait bit for both.
constexpr uint64_t kSameBit = 32;

BoardExplorer::Waiter WaiterFor(uint64_t index) {
  return [index](SteppedMemory& memory) { return WaitOnBoard(memory, index); };
}

// As a lane does.
BoardExplorer::Writer Stage(uint64_t index, ExtentState outcome) {
  return [=](SteppedMemory& memory) {
    SetBoardState(memory, index, ExtentState::kReading);
    SetBoardState(memory, index, outcome);
  };
}

void ExpectNobodySleepsForEver(BoardExplorer& explorer) {
  const BoardExplorer::Result result = explorer.Explore();
  EXPECT_THAT(result.fault, IsEmpty());
  std::printf("%.0f interleavings, %llu situations\n", result.interleavings,
              static_cast<unsigned long long>(result.situations));
  EXPECT_GT(result.interleavings, 1000);
}

std::string FaultOf(const BoardExplorer::Writer& writer, const BoardExplorer::Waiter& waiter) {
  BoardExplorer explorer(1);
  explorer.AddWriter(writer);
  explorer.AddWaiter(waiter);
  explorer.AddWaiter(waiter);
  return explorer.Explore().fault;
}

TEST(BoardProtocolTest, TwoWaitersSeeTheirExtentBecomeResident) {
  BoardExplorer explorer(1);
  explorer.AddWriter(Stage(0, ExtentState::kResident));
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(0));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, TwoWaitersSeeTheirExtentFail) {
  BoardExplorer explorer(1);
  explorer.AddWriter(Stage(0, ExtentState::kFailed));
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(0));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, AnExtentThatIsCalledOffAndDemandedAgainWakesItsWaiters) {
  BoardExplorer explorer(1);
  explorer.AddWriter([](SteppedMemory& memory) {
    SetBoardState(memory, 0, ExtentState::kReading);
    SetBoardState(memory, 0, ExtentState::kAbsent);
    MoveBoardStates(memory, 0, 1, ExtentState::kAbsent, ExtentState::kQueued);
    SetBoardState(memory, 0, ExtentState::kResident);
  });
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(0));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, WaitersOfOneBitAreNotLostToEachOthersExtents) {
  BoardExplorer explorer(kSameBit + 1);
  explorer.AddWriter([](SteppedMemory& memory) {
    SetBoardState(memory, 0, ExtentState::kResident);
    SetBoardState(memory, kSameBit, ExtentState::kResident);
  });
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(kSameBit));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, TwoLanesWakeTheWaitersOfTheirExtents) {
  BoardExplorer explorer(2);
  explorer.AddWriter(Stage(0, ExtentState::kResident));
  explorer.AddWriter(Stage(1, ExtentState::kFailed));
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(1));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, ARangeThatMovesAtOnceWakesTheWaitersOfEachOfItsExtents) {
  BoardExplorer explorer(2);
  explorer.AddWriter([](SteppedMemory& memory) {
    MoveBoardStates(memory, 0, 2, ExtentState::kQueued, ExtentState::kFailed);
  });
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(1));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, ABoardThatClosesWhileALaneFinishesWakesEverybody) {
  BoardExplorer explorer(2);
  explorer.AddWriter(Stage(0, ExtentState::kResident));
  explorer.AddWriter([](SteppedMemory& memory) { CloseBoard(memory); });
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(1));
  ExpectNobodySleepsForEver(explorer);
}

TEST(BoardProtocolTest, ADaemonThatDiesBetweenAnyTwoStepsLeavesNoWaiterAsleep) {
  BoardExplorer explorer(2);
  explorer.AddWriter([](SteppedMemory& memory) {
    SetBoardState(memory, 0, ExtentState::kReading);
    SetBoardState(memory, 0, ExtentState::kResident);
    CloseBoard(memory);
  });
  explorer.AddWaiter(WaiterFor(0));
  explorer.AddWaiter(WaiterFor(1));
  explorer.LetWritersDie();
  ExpectNobodySleepsForEver(explorer);
}

// The explorer itself: each of these is one step in the wrong place.

TEST(BoardExplorerTest, FindsAWakeBeforeTheCount) {
  const auto writer = [](SteppedMemory& memory) {
    memory.StoreState(0, ExtentState::kResident);
    memory.Wake(BoardWaitBit(0));
    memory.BumpChangeCount();
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAnAnnouncementBeforeTheChange) {
  const auto writer = [](SteppedMemory& memory) {
    AnnounceBoardChange(memory, BoardWaitBit(0), ExtentState::kResident);
    memory.StoreState(0, ExtentState::kResident);
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAChangeThatIsNotCounted) {
  const auto writer = [](SteppedMemory& memory) {
    memory.StoreState(0, ExtentState::kResident);
    memory.Wake(BoardWaitBit(0));
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAWakeOfOneWaiterOnly) {
  const auto writer = [](SteppedMemory& memory) {
    memory.StoreState(0, ExtentState::kResident);
    memory.BumpChangeCount();
    memory.WakeOne(BoardWaitBit(0));
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAWakeOfTheWrongBit) {
  const auto writer = [](SteppedMemory& memory) {
    memory.StoreState(0, ExtentState::kResident);
    AnnounceBoardChange(memory, BoardWaitBit(1), ExtentState::kResident);
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsACloseThatWakesNobody) {
  const auto writer = [](SteppedMemory& memory) {
    memory.ClosePhase();
    memory.BumpChangeCount();
  };
  EXPECT_THAT(FaultOf(writer, WaiterFor(0)), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAWaiterThatLooksBeforeItCounts) {
  const auto waiter = [](SteppedMemory& memory) {
    while (true) {
      const ExtentState state = memory.LoadState(0);
      if (IsSettled(state) || memory.GivesUp()) return state;
      memory.SleepUnlessChanged(memory.LoadChangeCount(), BoardWaitBit(0));
    }
  };
  EXPECT_THAT(FaultOf(Stage(0, ExtentState::kResident), waiter), HasSubstr("sleeps for ever"));
}

TEST(BoardExplorerTest, FindsAWaiterThatDoesNotLookAtTheDaemon) {
  const auto waiter = [](SteppedMemory& memory) {
    while (true) {
      const uint32_t seen = memory.LoadChangeCount();
      const ExtentState state = memory.LoadState(0);
      if (IsSettled(state)) return state;
      memory.SleepUnlessChanged(seen, BoardWaitBit(0));
    }
  };
  const auto writer = [](SteppedMemory& memory) { CloseBoard(memory); };
  EXPECT_THAT(FaultOf(writer, waiter), HasSubstr("sleeps for ever"));
}

}  // namespace
}  // namespace forestage
