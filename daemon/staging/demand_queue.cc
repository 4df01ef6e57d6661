#include "daemon/staging/demand_queue.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/units.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

void Append(uint64_t extent, std::deque<ExtentRange>& order) {
  if (!order.empty() && order.back().last == extent + 1) return;
  if (!order.empty() && order.back().last == extent) {
    ++order.back().last;
  } else {
    order.push_back({.first = extent, .last = extent + 1});
  }
}

void AppendTo(std::vector<ExtentRange>& ranges, uint64_t extent) {
  if (!ranges.empty() && ranges.back().last == extent) {
    ++ranges.back().last;
  } else {
    ranges.push_back({.first = extent, .last = extent + 1});
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

ExtentParts DemandQueue::Whole(uint64_t extent) const {
  return ExtentParts({.begin = 0, .end = static_cast<uint32_t>(extents_.extent(extent).bytes)});
}

DemandQueue::Sums DemandQueue::SumsOf(uint64_t extent) const {
  if (demand_counts_[extent] == 0) return {};
  Sums sums;
  const auto partial = partials_.find(extent);
  if (partial == partials_.end()) {
    sums.wanted = extents_.extent(extent).bytes;
    if (states_[extent] == State::kResident) sums.resident = sums.wanted;
  } else {
    sums.wanted = partial->second.wanted.bytes();
    sums.resident = partial->second.wanted.Intersect(partial->second.resident).bytes();
  }
  if (states_[extent] == State::kFailed) sums.failed = sums.wanted - sums.resident;
  return sums;
}

void DemandQueue::TakeOff(uint64_t extent) {
  const Sums sums = SumsOf(extent);
  wanted_bytes_ -= sums.wanted;
  resident_bytes_ -= sums.resident;
  failed_bytes_ -= sums.failed;
}

void DemandQueue::Count(uint64_t extent) {
  const Sums sums = SumsOf(extent);
  wanted_bytes_ += sums.wanted;
  resident_bytes_ += sums.resident;
  failed_bytes_ += sums.failed;
}

void DemandQueue::SetState(uint64_t extent, State state) {
  TakeOff(extent);
  if (states_[extent] == State::kQueued) --queued_;
  if (state == State::kQueued) ++queued_;
  states_[extent] = state;
  Count(extent);
}

DemandQueue::Partial& DemandQueue::PartialOf(uint64_t extent) {
  const auto [found, made] = partials_.try_emplace(extent);
  if (!made) return found->second;
  const ExtentParts whole = Whole(extent);
  if (demand_counts_[extent] > 0) found->second.wanted = whole;
  if (states_[extent] == State::kResident) found->second.resident = whole;
  if (states_[extent] == State::kTaken) found->second.reading = whole;
  return found->second;
}

void DemandQueue::DropIfWhole(uint64_t extent) {
  const auto found = partials_.find(extent);
  if (found == partials_.end()) return;
  const ExtentParts none;
  const ExtentParts whole = Whole(extent);
  const Partial& partial = found->second;
  const State state = states_[extent];
  if (partial.wanted == (demand_counts_[extent] > 0 ? whole : none) &&
      partial.resident == (state == State::kResident ? whole : none) &&
      (state != State::kTaken || partial.reading == whole)) {
    partials_.erase(found);
  }
}

bool DemandQueue::IsMissing(uint64_t extent) const {
  if (demand_counts_[extent] == 0) return false;
  const auto partial = partials_.find(extent);
  if (partial == partials_.end()) return states_[extent] != State::kResident;
  return !partial->second.wanted.Without(partial->second.resident).empty();
}

bool DemandQueue::Widen(Demand& demand, uint64_t extent, ExtentParts::Range part) {
  const bool is_new = !demand.demanded[extent];
  const auto known = demand.parts.find(extent);
  const bool was_whole = !is_new && known == demand.parts.end();
  if (was_whole || (!is_new && known->second.Covers(part))) return false;
  ExtentParts demanded = is_new ? ExtentParts(part) : std::move(known->second);
  if (!is_new) {
    demanded.Add(part);
    demanded.Coarsen(kPartsPerExtentMax);
  }
  const bool whole = demanded == Whole(extent);

  TakeOff(extent);
  demand.demanded[extent] = true;
  const bool is_first = is_new && demand_counts_[extent] == 0;
  if ((is_first && !whole) || partials_.contains(extent)) {
    Partial& partial = PartialOf(extent);
    partial.wanted.Add(demanded);
    partial.wanted.Coarsen(kPartsPerExtentMax);
  }
  if (is_new) ++demand_counts_[extent];
  if (whole) {
    demand.parts.erase(extent);
  } else {
    demand.parts[extent] = std::move(demanded);
  }
  DropIfWhole(extent);
  Count(extent);
  return is_new;
}

bool DemandQueue::Enqueue(Demand& demand, uint64_t extent, bool is_new) {
  switch (states_[extent]) {
    case State::kTaken:
      // Finish() sees what is missing then.
      return false;
    case State::kQueued:
      // In another session's order already; in this one's too, since that session may go.
      if (is_new) Append(extent, demand.order);
      return false;
    case State::kResident:
      if (!IsMissing(extent)) return false;
      break;
    case State::kFailed:
      // What failed is demanded no more, but this is: it is looked at again.
      if (!IsMissing(extent)) {
        TakeOff(extent);
        PartialOf(extent).resident = {};
        Count(extent);
      }
      break;
    case State::kIdle:
      break;
  }
  SetState(extent, State::kQueued);
  Append(extent, demand.order);
  return true;
}

std::vector<ExtentRange> DemandQueue::Add(SessionId session, ExtentRange range) {
  CHECK(range.first <= range.last && range.last <= extents_.extent_count());
  Demand& demand = DemandOf(session);
  std::vector<ExtentRange> queued;
  for (uint64_t extent = range.first; extent < range.last; ++extent) {
    const auto bytes = static_cast<uint32_t>(extents_.extent(extent).bytes);
    const bool is_new = Widen(demand, extent, {.begin = 0, .end = bytes});
    if (Enqueue(demand, extent, is_new)) AppendTo(queued, extent);
  }
  return queued;
}

bool DemandQueue::AddPart(SessionId session, uint64_t extent, ExtentParts::Range part) {
  CHECK(extent < extents_.extent_count());
  const uint64_t bytes = extents_.extent(extent).bytes;
  CHECK(part.begin < part.end && part.end <= bytes);
  const uint64_t page = PageBytes();
  part.begin = static_cast<uint32_t>(AlignDown(part.begin, page));
  part.end = static_cast<uint32_t>(std::min(AlignUp(part.end, page), bytes));
  Demand& demand = DemandOf(session);
  const bool is_new = Widen(demand, extent, part);
  return Enqueue(demand, extent, is_new);
}

void DemandQueue::PushUrgent(uint64_t extent) {
  if (is_urgent_[extent]) return;
  is_urgent_[extent] = true;
  urgent_.push_back(extent);
}

bool DemandQueue::AddUrgent(SessionId session, uint64_t extent) {
  CHECK(extent < extents_.extent_count());
  Demand& demand = DemandOf(session);
  const bool is_new = !demand.demanded[extent];
  if (is_new) (void)Widen(demand, extent, Whole(extent).ranges().front());
  const bool queued = Enqueue(demand, extent, is_new);
  if (states_[extent] == State::kQueued) PushUrgent(extent);
  const auto partial = partials_.find(extent);
  if (states_[extent] == State::kTaken && partial != partials_.end()) partial->second.urgent = true;
  return queued;
}

void DemandQueue::Narrow(uint64_t extent) {
  ExtentParts wanted;
  for (const auto& [session, demand] : demands_) {
    if (!demand.demanded[extent]) continue;
    const auto parts = demand.parts.find(extent);
    // Demanded whole: nothing to narrow.
    if (parts == demand.parts.end()) return;
    wanted.Add(parts->second);
  }
  if (wanted.empty() && !partials_.contains(extent)) return;
  Partial& partial = PartialOf(extent);
  partial.wanted = partial.wanted.Intersect(wanted);
}

DemandQueue::Removed DemandQueue::RemoveSession(SessionId session) {
  Removed removed;
  const auto found = demands_.find(session);
  if (found == demands_.end()) return removed;
  const std::vector<bool> demanded = std::move(found->second.demanded);
  demands_.erase(found);
  for (uint64_t extent = 0; extent < extents_.extent_count(); ++extent) {
    if (!demanded[extent]) continue;
    CHECK(demand_counts_[extent] > 0);
    TakeOff(extent);
    Narrow(extent);
    --demand_counts_[extent];
    Count(extent);
    if (states_[extent] == State::kQueued) {
      if (IsMissing(extent)) {
        // It may have stood in the order of the session that went only.
        AppendToAnyOrder(extent);
      } else {
        const auto partial = partials_.find(extent);
        const bool resident = partial != partials_.end() && !partial->second.resident.empty();
        SetState(extent, resident ? State::kResident : State::kIdle);
        AppendTo(resident ? removed.resident : removed.idle, extent);
      }
    }
    DropIfWhole(extent);
  }
  return removed;
}

void DemandQueue::AppendToAnyOrder(uint64_t extent) {
  for (auto& [session, demand] : demands_) {
    if (!demand.demanded[extent]) continue;
    Append(extent, demand.order);
    return;
  }
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
    SetTaken(*extent);
    return Taken{.extent = *extent, .cause = ReadCause::kDemand};
  }
  for (size_t tried = 0; tried < demands_.size(); ++tried) {
    auto turn = demands_.lower_bound(next_turn_);
    if (turn == demands_.end()) turn = demands_.begin();
    next_turn_ = turn->first + 1;
    if (const std::optional<uint64_t> extent = NextOf(turn->second)) {
      SetTaken(*extent);
      return Taken{.extent = *extent, .cause = ReadCause::kStage};
    }
  }
  return std::nullopt;
}

void DemandQueue::SetTaken(uint64_t extent) {
  SetState(extent, State::kTaken);
  const auto partial = partials_.find(extent);
  if (partial == partials_.end()) return;
  partial->second.reading = partial->second.wanted.Without(partial->second.resident);
  partial->second.urgent = false;
}

ExtentParts DemandQueue::PartsOf(uint64_t extent) const {
  const auto partial = partials_.find(extent);
  return partial != partials_.end() ? partial->second.reading : Whole(extent);
}

ExtentParts DemandQueue::DemandedOf(uint64_t extent) const {
  if (demand_counts_[extent] == 0) return {};
  const auto partial = partials_.find(extent);
  return partial != partials_.end() ? partial->second.wanted : Whole(extent);
}

bool DemandQueue::Finish(uint64_t extent, ReadOutcome outcome) {
  CHECK(extent < states_.size() && states_[extent] == State::kTaken);
  const auto found = partials_.find(extent);
  Partial* const partial = found != partials_.end() ? &found->second : nullptr;
  TakeOff(extent);
  if (partial != nullptr) {
    if (outcome == ReadOutcome::kResident) partial->resident.Add(partial->reading);
    if (outcome == ReadOutcome::kAllResident) partial->resident = Whole(extent);
    // Nobody knows how long ago it was seen, so it is looked at again with the rest.
    if (outcome == ReadOutcome::kCancelled) partial->resident = {};
    // Of demands long gone; the set must not grow with each that comes and goes.
    if (partial->resident.ranges().size() > kPartsPerExtentMax) {
      partial->resident = partial->resident.Intersect(partial->wanted);
    }
    partial->reading = {};
  }
  Count(extent);
  bool again = false;
  switch (outcome) {
    case ReadOutcome::kResident:
    case ReadOutcome::kAllResident:
      again = partial != nullptr && IsMissing(extent);
      SetState(extent, again ? State::kQueued : State::kResident);
      break;
    case ReadOutcome::kFailed:
      SetState(extent, State::kFailed);
      break;
    case ReadOutcome::kCancelled:
      SetState(extent, State::kIdle);
      break;
  }
  if (again) {
    AppendToAnyOrder(extent);
    if (partial->urgent) PushUrgent(extent);
  }
  DropIfWhole(extent);
  return again;
}

}  // namespace forestage
