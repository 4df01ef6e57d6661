// The steps by which a change of the staging board reaches who waits for it.
//
// Their order is what keeps a wake-up from being lost, so it is written once, over the operations
// of a `Memory`: the board runs these steps on shared memory, and the model in tests/model runs the
// same ones, stopped between any two, in every order in which two writers and two waiters can meet.
// Every call to Memory is one atomic step:
//
//   ExtentState LoadState(uint64_t index)
//   void StoreState(uint64_t index, ExtentState state)
//   bool CompareExchangeState(uint64_t index, ExtentState expected, ExtentState desired)
//   uint32_t LoadChangeCount()
//   void BumpChangeCount()
//   void ClosePhase()
//   void Wake(uint32_t wait_bits)              whoever sleeps with one of these bits
//   bool GivesUp()                             the daemon is gone, or the waiter has no more time
//   void SleepUnlessChanged(uint32_t seen, uint32_t wait_bits)
//                                              returns at once if the change count is not `seen`;
//                                              may return for no reason
#pragma once

#include <cstdint>

#include "common/staging_board.h"

namespace forestage {

inline constexpr uint32_t kBoardWaitBitsAll = UINT32_MAX;

// Ends every wait for the extent.
constexpr bool IsSettled(ExtentState state) {
  return state == ExtentState::kResident || state == ExtentState::kFailed;
}

// After the change itself: who has looked before it finds another count, or sleeps and is woken.
template <typename Memory>
void AnnounceBoardChange(Memory& memory, uint32_t wait_bits, ExtentState state) {
  memory.BumpChangeCount();
  if (state == ExtentState::kQueued || state == ExtentState::kReading) return;
  memory.Wake(wait_bits);
}

template <typename Memory>
void SetBoardState(Memory& memory, uint64_t index, ExtentState state) {
  memory.StoreState(index, state);
  AnnounceBoardChange(memory, BoardWaitBit(index), state);
}

// Moves those of extents [first, last) that are `expected`, and announces that once. Says whether
// there were any.
template <typename Memory>
bool MoveBoardStates(Memory& memory, uint64_t first, uint64_t last, ExtentState expected,
                     ExtentState desired) {
  uint32_t changed = 0;
  for (uint64_t index = first; index < last; ++index) {
    if (memory.CompareExchangeState(index, expected, desired)) changed |= BoardWaitBit(index);
  }
  if (changed != 0) AnnounceBoardChange(memory, changed, desired);
  return changed != 0;
}

template <typename Memory>
void CloseBoard(Memory& memory) {
  memory.ClosePhase();
  memory.BumpChangeCount();
  memory.Wake(kBoardWaitBitsAll);
}

// The count before the state: a change between the two is seen by the sleep.
template <typename Memory>
ExtentState WaitOnBoard(Memory& memory, uint64_t index) {
  while (true) {
    const uint32_t seen = memory.LoadChangeCount();
    const ExtentState state = memory.LoadState(index);
    if (IsSettled(state) || memory.GivesUp()) return state;
    memory.SleepUnlessChanged(seen, BoardWaitBit(index));
  }
}

}  // namespace forestage
