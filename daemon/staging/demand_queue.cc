#include "daemon/staging/demand_queue.h"

#include "common/check.h"

namespace forestage {
namespace {

void Append(uint64_t extent, std::deque<ExtentRange>& order) {
  if (!order.empty() && order.back().last == extent) {
    ++order.back().last;
  } else {
    order.push_back({.first = extent, .last = extent + 1});
  }
}

}  // namespace

DemandQueue::DemandQueue(const ExtentMap& extents)
    : extents_(extents),
      states_(extents.extent_count(), State::kIdle),
      demand_counts_(extents.extent_count(), 0),
      is_urgent_(extents.extent_count(), false) {}

DemandQueue::Demand& DemandQueue::DemandOf(SessionId session) {
  Demand& demand = demands_[session];
  demand.demanded.resize(extents_.extent_count(), false);
  return demand;
}

uint64_t* DemandQueue::CounterOf(State state) {
  if (state == State::kResident) return &resident_bytes_;
  if (state == State::kFailed) return &failed_bytes_;
  return nullptr;
}

void DemandQueue::SetState(uint64_t extent, State state) {
  if (demand_counts_[extent] > 0) {
    const uint64_t bytes = extents_.extent(extent).bytes;
    if (uint64_t* counter = CounterOf(states_[extent])) *counter -= bytes;
    if (uint64_t* counter = CounterOf(state)) *counter += bytes;
  }
  if (states_[extent] == State::kQueued) --queued_;
  if (state == State::kQueued) ++queued_;
  states_[extent] = state;
}

bool DemandQueue::Want(Demand& demand, uint64_t extent) {
  if (!demand.demanded[extent]) {
    demand.demanded[extent] = true;
    if (++demand_counts_[extent] == 1) {
      const uint64_t bytes = extents_.extent(extent).bytes;
      wanted_bytes_ += bytes;
      if (uint64_t* counter = CounterOf(states_[extent])) *counter += bytes;
    } else if (states_[extent] == State::kQueued) {
      // In another session's order already; in this one's too, since that session may go.
      return true;
    }
  }
  if (states_[extent] != State::kIdle && states_[extent] != State::kFailed) return false;
  SetState(extent, State::kQueued);
  return true;
}

void DemandQueue::Add(SessionId session, ExtentRange range) {
  CHECK(range.first <= range.last && range.last <= extents_.extent_count());
  Demand& demand = DemandOf(session);
  for (uint64_t extent = range.first; extent < range.last; ++extent) {
    if (Want(demand, extent)) Append(extent, demand.order);
  }
}

void DemandQueue::AddUrgent(SessionId session, uint64_t extent) {
  CHECK(extent < extents_.extent_count());
  Demand& demand = DemandOf(session);
  if (Want(demand, extent)) Append(extent, demand.order);
  if (states_[extent] != State::kQueued || is_urgent_[extent]) return;
  is_urgent_[extent] = true;
  urgent_.push_back(extent);
}

std::vector<ExtentRange> DemandQueue::RemoveSession(SessionId session) {
  std::vector<ExtentRange> unwanted;
  std::vector<uint64_t> requeued;
  const auto found = demands_.find(session);
  if (found == demands_.end()) return unwanted;
  for (uint64_t extent = 0; extent < extents_.extent_count(); ++extent) {
    if (!found->second.demanded[extent]) continue;
    CHECK(demand_counts_[extent] > 0);
    if (demand_counts_[extent] > 1) {
      --demand_counts_[extent];
      // It may stand in the order of the session that goes only: when it was queued again.
      if (states_[extent] == State::kQueued) requeued.push_back(extent);
      continue;
    }
    const uint64_t bytes = extents_.extent(extent).bytes;
    wanted_bytes_ -= bytes;
    if (uint64_t* counter = CounterOf(states_[extent])) *counter -= bytes;
    demand_counts_[extent] = 0;
    if (states_[extent] != State::kQueued) continue;
    SetState(extent, State::kIdle);
    if (!unwanted.empty() && unwanted.back().last == extent) {
      ++unwanted.back().last;
    } else {
      unwanted.push_back({.first = extent, .last = extent + 1});
    }
  }
  demands_.erase(found);
  for (const uint64_t extent : requeued) {
    for (auto& [other, demand] : demands_) {
      if (!demand.demanded[extent]) continue;
      Append(extent, demand.order);
      break;
    }
  }
  return unwanted;
}

void DemandQueue::TrimUrgent() {
  while (!urgent_.empty() && states_[urgent_.front()] != State::kQueued) {
    is_urgent_[urgent_.front()] = false;
    urgent_.pop_front();
  }
}

bool DemandQueue::IsUrgent() {
  TrimUrgent();
  return !urgent_.empty();
}

std::optional<uint64_t> DemandQueue::NextUrgent() {
  TrimUrgent();
  if (urgent_.empty()) return std::nullopt;
  const uint64_t extent = urgent_.front();
  urgent_.pop_front();
  is_urgent_[extent] = false;
  return extent;
}

std::optional<uint64_t> DemandQueue::NextOf(Demand& demand) {
  while (!demand.order.empty()) {
    ExtentRange& range = demand.order.front();
    const uint64_t extent = range.first++;
    if (range.first == range.last) demand.order.pop_front();
    if (states_[extent] == State::kQueued) return extent;
  }
  return std::nullopt;
}

std::optional<DemandQueue::Taken> DemandQueue::Take() {
  if (const std::optional<uint64_t> extent = NextUrgent()) {
    SetState(*extent, State::kTaken);
    return Taken{.extent = *extent, .cause = ReadCause::kDemand};
  }
  for (size_t tried = 0; tried < demands_.size(); ++tried) {
    auto turn = demands_.lower_bound(next_turn_);
    if (turn == demands_.end()) turn = demands_.begin();
    next_turn_ = turn->first + 1;
    if (const std::optional<uint64_t> extent = NextOf(turn->second)) {
      SetState(*extent, State::kTaken);
      return Taken{.extent = *extent, .cause = ReadCause::kStage};
    }
  }
  return std::nullopt;
}

void DemandQueue::Finish(uint64_t extent, ReadOutcome outcome) {
  CHECK(extent < states_.size() && states_[extent] == State::kTaken);
  switch (outcome) {
    case ReadOutcome::kResident:
      return SetState(extent, State::kResident);
    case ReadOutcome::kFailed:
      return SetState(extent, State::kFailed);
    case ReadOutcome::kCancelled:
      return SetState(extent, State::kIdle);
  }
}

}  // namespace forestage
