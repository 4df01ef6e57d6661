#include "tests/model/board_explorer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/board_protocol.h"

namespace forestage {

struct SteppedMemory::World {
  struct Party {
    // What its steps were answered so far.
    std::vector<uint64_t> answers;
    // The bits that it sleeps with; 0: awake.
    uint32_t sleeps_with = 0;
    bool finished = false;
    ExtentState returned = ExtentState::kAbsent;
  };
  ModelBoard board;
  std::vector<Party> parties;
  // The last step, for people.
  std::string step;
};

std::optional<uint64_t> SteppedMemory::Answer(const std::function<uint64_t()>& step) {
  std::vector<uint64_t>& answers = world_.parties[self_].answers;
  if (position_ < answers.size()) return answers[position_++];
  if (stepped_) {
    unfinished_ = true;
    return std::nullopt;
  }
  stepped_ = true;
  answers.push_back(step());
  return answers[position_++];
}

ExtentState SteppedMemory::LoadState(uint64_t index) {
  const auto answer = Answer([&] {
    world_.step = absl::StrCat("load state ", index);
    return static_cast<uint64_t>(world_.board.states[index]);
  });
  // Settled: a party that has to end does.
  return static_cast<ExtentState>(answer.value_or(static_cast<uint64_t>(ExtentState::kFailed)));
}

void SteppedMemory::StoreState(uint64_t index, ExtentState state) {
  Answer([&] {
    world_.step = absl::StrCat("store state ", index, " := ", static_cast<int>(state));
    world_.board.states[index] = state;
    return 0;
  });
}

bool SteppedMemory::CompareExchangeState(uint64_t index, ExtentState expected,
                                         ExtentState desired) {
  const auto answer = Answer([&] {
    world_.step = absl::StrCat("exchange state ", index, " := ", static_cast<int>(desired));
    if (world_.board.states[index] != expected) return 0;
    world_.board.states[index] = desired;
    return 1;
  });
  return answer.value_or(0) == 1;
}

uint32_t SteppedMemory::LoadChangeCount() {
  const auto answer = Answer([&] {
    world_.step = absl::StrCat("load change count ", world_.board.change_count);
    return world_.board.change_count;
  });
  return static_cast<uint32_t>(answer.value_or(0));
}

void SteppedMemory::BumpChangeCount() {
  Answer([&] {
    world_.step = "bump change count";
    ++world_.board.change_count;
    return 0;
  });
}

void SteppedMemory::ClosePhase() {
  Answer([&] {
    world_.step = "close";
    world_.board.closed = true;
    return 0;
  });
}

void SteppedMemory::Wake(uint32_t wait_bits) {
  Answer([&] {
    world_.step = "wake";
    for (World::Party& party : world_.parties) {
      if ((party.sleeps_with & wait_bits) != 0) party.sleeps_with = 0;
    }
    return 0;
  });
}

void SteppedMemory::WakeOne(uint32_t wait_bits) {
  Answer([&] {
    world_.step = "wake one";
    for (World::Party& party : world_.parties) {
      if ((party.sleeps_with & wait_bits) == 0) continue;
      party.sleeps_with = 0;
      break;
    }
    return 0;
  });
}

bool SteppedMemory::GivesUp() {
  const auto answer = Answer([&] {
    world_.step = "look at the daemon";
    return world_.board.closed || world_.board.dead ? 1 : 0;
  });
  return answer.value_or(1) == 1;
}

void SteppedMemory::SleepUnlessChanged(uint32_t seen, uint32_t wait_bits) {
  Answer([&] {
    const bool sleeps = world_.board.change_count == seen;
    world_.step = sleeps ? "sleep" : "not sleep: changed";
    if (sleeps) world_.parties[self_].sleeps_with = wait_bits;
    return 0;
  });
  // Its next round is like its first: what it saw before is forgotten.
  if (!unfinished_) world_.parties[self_].answers.clear();
}

BoardExplorer::BoardExplorer(size_t extent_count) : extent_count_(extent_count) {}

std::string BoardExplorer::PartyName(size_t party) const {
  return party < writers_.size() ? absl::StrCat("writer ", party)
                                 : absl::StrCat("waiter ", party - writers_.size());
}

BoardExplorer::Result BoardExplorer::Explore() {
  walked_.clear();
  path_.clear();
  result_ = {};
  SteppedMemory::World world;
  world.board.states.assign(extent_count_, ExtentState::kQueued);
  world.parties.resize(party_count());
  result_.interleavings = Walk(world);
  result_.situations = walked_.size();
  return result_;
}

double BoardExplorer::WalkStep(const SteppedMemory::World& world, size_t party) {
  SteppedMemory::World next = world;
  SteppedMemory memory(next, party);
  ExtentState returned = ExtentState::kAbsent;
  if (party < writers_.size()) {
    writers_[party](memory);
  } else {
    returned = waiters_[party - writers_.size()](memory);
  }
  if (!memory.unfinished_) {
    next.parties[party].finished = true;
    next.parties[party].returned = returned;
  }
  path_.push_back(absl::StrCat(PartyName(party), ": ", next.step));
  const double ways = Walk(next);
  path_.pop_back();
  return ways;
}

double BoardExplorer::Walk(SteppedMemory::World& world) {
  if (!result_.fault.empty()) return 0;
  std::string key;
  for (const ExtentState state : world.board.states) key.push_back(static_cast<char>(state));
  absl::StrAppend(&key, world.board.change_count, world.board.closed, world.board.dead);
  for (const SteppedMemory::World::Party& party : world.parties) {
    absl::StrAppend(&key, "|", party.sleeps_with, party.finished, ":",
                    absl::StrJoin(party.answers, ","));
  }
  if (const auto found = walked_.find(key); found != walked_.end()) return found->second;

  double ways = 0;
  bool any = false;
  for (size_t party = 0; party < party_count(); ++party) {
    SteppedMemory::World::Party& one = world.parties[party];
    if (one.finished) continue;
    const bool writer = party < writers_.size();
    if (writer && world.board.dead) continue;
    if (one.sleeps_with != 0) {
      // The wait's own time slice, which sees a daemon that is gone.
      if (!world.board.dead) continue;
      SteppedMemory::World awake = world;
      awake.parties[party].sleeps_with = 0;
      ways += WalkStep(awake, party);
    } else {
      ways += WalkStep(world, party);
    }
    any = true;
  }
  if (writers_may_die_ && !world.board.dead) {
    SteppedMemory::World next = world;
    next.board.dead = true;
    path_.push_back("the daemon dies");
    ways += Walk(next);
    path_.pop_back();
    any = true;
  }
  if (!any) {
    CheckEnd(world);
    ways = 1;
  }
  walked_[key] = ways;
  return ways;
}

void BoardExplorer::CheckEnd(const SteppedMemory::World& world) {
  for (size_t party = 0; party < party_count(); ++party) {
    const SteppedMemory::World::Party& one = world.parties[party];
    std::string fault;
    if (party < writers_.size()) {
      if (!one.finished && !world.board.dead) fault = "is not at its end";
    } else if (!one.finished) {
      fault = "sleeps for ever";
    } else if (!IsSettled(one.returned) && !world.board.closed && !world.board.dead) {
      fault = "gave up though the daemon serves";
    }
    if (fault.empty() || !result_.fault.empty()) continue;
    result_.fault =
        absl::StrCat(PartyName(party), " ", fault, " after:\n  ", absl::StrJoin(path_, "\n  "));
  }
}

}  // namespace forestage
