// Takes the steps of common/board_protocol.h apart: runs writers and waiters in every order in
// which their atomic steps can follow each other, and finds waiters that sleep for ever.
//
// Nothing here is a thread. A party is a function that is run again from its beginning for each
// step: what it was told before is told again, its next step is done, and all later ones lead it to
// its end without effect. Two ways to one situation are walked on from there once. Memory is
// sequentially consistent here; the orders that the real board asks of its atomics make it so for
// these steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/staging_board.h"

namespace forestage {

// What the parties share.
struct ModelBoard {
  std::vector<ExtentState> states;
  uint32_t change_count = 0;
  bool closed = false;
  // The writers have died; the heartbeat stands still.
  bool dead = false;

  friend bool operator==(const ModelBoard&, const ModelBoard&) = default;
};

class BoardExplorer;

// The Memory of board_protocol.h for one party.
class SteppedMemory {
 public:
  ExtentState LoadState(uint64_t index);
  void StoreState(uint64_t index, ExtentState state);
  bool CompareExchangeState(uint64_t index, ExtentState expected, ExtentState desired);
  uint32_t LoadChangeCount();
  void BumpChangeCount();
  void ClosePhase();
  void Wake(uint32_t wait_bits);
  // As Wake, but of all sleepers only one, as a mistaken program may do.
  void WakeOne(uint32_t wait_bits);
  bool GivesUp();
  void SleepUnlessChanged(uint32_t seen, uint32_t wait_bits);

 private:
  friend class BoardExplorer;
  struct World;
  SteppedMemory(World& world, size_t self) : world_(world), self_(self) {}
  // The answer to the step if it was done before or is the one to be done; else nullopt, and the
  // party has to end.
  std::optional<uint64_t> Answer(const std::function<uint64_t()>& step);

  World& world_;
  const size_t self_;
  size_t position_ = 0;
  bool stepped_ = false;
  bool unfinished_ = false;
};

class BoardExplorer {
 public:
  using Writer = std::function<void(SteppedMemory&)>;
  // Returns the state that the wait ended with. Remembers nothing from before its last sleep.
  using Waiter = std::function<ExtentState(SteppedMemory&)>;

  explicit BoardExplorer(size_t extent_count);
  void AddWriter(Writer writer) { writers_.push_back(std::move(writer)); }
  void AddWaiter(Waiter waiter) { waiters_.push_back(std::move(waiter)); }
  // The writers may die between any two steps. Only then do sleepers look up by themselves.
  void LetWritersDie() { writers_may_die_ = true; }

  struct Result {
    uint64_t situations = 0;
    // Different orders of steps; saturates.
    double interleavings = 0;
    // The first waiter that is never woken or returned what is not so, with the steps that lead
    // there; empty: none.
    std::string fault;
  };
  Result Explore();

 private:
  double Walk(SteppedMemory::World& world);
  double WalkStep(const SteppedMemory::World& world, size_t party);
  void CheckEnd(const SteppedMemory::World& world);
  size_t party_count() const { return writers_.size() + waiters_.size(); }
  std::string PartyName(size_t party) const;

  const size_t extent_count_;
  std::vector<Writer> writers_;
  std::vector<Waiter> waiters_;
  bool writers_may_die_ = false;

  std::map<std::string, double> walked_;
  std::vector<std::string> path_;
  Result result_;
};

}  // namespace forestage
