#include "daemon/staging/flight_budget.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

// How long whose turn it is may take to come: his lanes may stand still for a reason of their own.
constexpr absl::Duration kTurnPatience = absl::Milliseconds(20);
// Who is held back looks again no sooner: less than the pace's credit, so that it costs no bytes,
// and more than one look for each of many extents a second.
constexpr absl::Duration kLookAgainMin = absl::Milliseconds(10);

}  // namespace

std::shared_ptr<FlightBudget> FlightBudget::Create(Options options) {
  CHECK(options.mount_bytes_max > 0 && options.node_bytes_max > 0);
  return std::shared_ptr<FlightBudget>(new FlightBudget(options));
}

FlightLimit::Range FlightBudget::RangeOf() const {
  return {.min = std::min(kMountFlightBytesMin, options_.mount_bytes_max),
          .start = std::min(kMountFlightBytesStart, options_.mount_bytes_max),
          .max = options_.mount_bytes_max};
}

std::unique_ptr<FlightBudget::Share> FlightBudget::Join(uint64_t device,
                                                        uint64_t bytes_per_second_max,
                                                        std::shared_ptr<LaneWaker> waker) {
  std::unique_ptr<Share> share(new Share(shared_from_this(), device, std::move(waker)));
  absl::MutexLock lock(&mutex_);
  const auto [mount, is_new] = mounts_.try_emplace(device, RangeOf());
  if (is_new && bytes_per_second_max > 0) mount->second.pace.emplace(bytes_per_second_max);
  mount->second.shares.push_back(share.get());
  return share;
}

std::vector<MountFlight> FlightBudget::Flights() const {
  std::vector<MountFlight> flights;
  absl::MutexLock lock(&mutex_);
  for (const auto& [device, mount] : mounts_) {
    flights.push_back(
        {.device = device,
         .in_flight_bytes = mount.in_flight_bytes,
         .limit_bytes = mount.limit.bytes(),
         .stuck_bytes = mount.stuck_bytes,
         .bytes_per_second_max = mount.pace.has_value() ? mount.pace->bytes_per_second() : 0,
         .held_back = std::any_of(mount.shares.begin(), mount.shares.end(),
                                  [](const Share* share) { return share->held_back_; })});
  }
  return flights;
}

bool FlightBudget::Allows(const Mount& mount, const Share& share, uint64_t bytes,
                          bool urgent) const {
  // Every checkpoint moves, whoever was first.
  if (share.in_flight_bytes_ == 0) return true;
  if (in_flight_bytes_ + bytes > options_.node_bytes_max) return false;
  const uint64_t limit = mount.limit.bytes() + (urgent ? mount.limit.bytes() / 4 : 0);
  if (mount.in_flight_bytes + bytes > limit) return false;
  // Who waits comes to its part before others go beyond theirs.
  const auto is_other = [&share](const Share* other) {
    return other != &share && (other->waits_ || other->in_flight_bytes_ > 0);
  };
  const auto others = std::count_if(mount.shares.begin(), mount.shares.end(), is_other);
  const bool somebody_waits =
      std::any_of(mount.shares.begin(), mount.shares.end(),
                  [&share](const Share* other) { return other != &share && other->waits_; });
  return !somebody_waits ||
         share.in_flight_bytes_ + bytes <= limit / (static_cast<uint64_t>(others) + 1);
}

void FlightBudget::WakeWaiting(const Mount& mount) {
  const auto wake = [](const Mount& of) {
    for (const Share* share : of.shares) {
      // It stays one that waits until it has taken.
      if (share->waits_) share->waker_->WakeAll();
    }
  };
  if (!std::exchange(node_refused_, false)) return wake(mount);
  for (const auto& [device, other] : mounts_) wake(other);
}

absl::Time FlightBudget::PacedFrom(Mount& mount, const Share& share, bool urgent, absl::Time now) {
  if (!mount.pace.has_value()) return absl::InfinitePast();
  const auto goes_first = [&](const Share* other) {
    if (other == &share || !other->held_back_) return false;
    if (other->urgent_ != urgent) return other->urgent_;
    return other->turn_ < share.turn_;
  };
  const bool others_turn = std::any_of(mount.shares.begin(), mount.shares.end(), goes_first);
  return mount.pace->Next(now) + (others_turn ? kTurnPatience : absl::ZeroDuration());
}

FlightBudget::Place FlightBudget::Share::TryTake(uint64_t bytes, bool urgent, absl::Time now) {
  absl::MutexLock lock(&budget_->mutex_);
  Mount& mount = budget_->mounts_.at(device_);
  held_back_ = false;
  if (!budget_->Allows(mount, *this, bytes, urgent)) {
    waits_ = true;
    if (budget_->in_flight_bytes_ + bytes > budget_->options_.node_bytes_max) {
      budget_->node_refused_ = true;
    }
    return {};
  }
  waits_ = false;
  const absl::Time from = PacedFrom(mount, *this, urgent, now);
  if (now < from) {
    held_back_ = true;
    urgent_ = urgent;
    mount.held_back = true;
    return {.again = std::max(from, now + kLookAgainMin)};
  }
  if (mount.pace.has_value()) mount.pace->Take(bytes, now);
  turn_ = ++mount.turns;
  in_flight_bytes_ += bytes;
  mount.in_flight_bytes += bytes;
  budget_->in_flight_bytes_ += bytes;
  return {.taken = true};
}

void FlightBudget::Share::Withdraw() {
  absl::MutexLock lock(&budget_->mutex_);
  held_back_ = false;
  if (!std::exchange(waits_, false)) return;
  budget_->WakeWaiting(budget_->mounts_.at(device_));
}

void FlightBudget::PayBack(Mount& mount, uint64_t bytes, absl::Time now) {
  if (!mount.pace.has_value() || bytes == 0) return;
  mount.pace->GiveBack(bytes);
  if (mount.pace->Next(now) > now) return;
  // Sooner than they were told.
  for (const Share* share : mount.shares) {
    if (share->held_back_) share->waker_->WakeAll();
  }
}

void FlightBudget::Free(Mount& mount, Share& share, uint64_t bytes) {
  CHECK(share.in_flight_bytes_ >= bytes);
  share.in_flight_bytes_ -= bytes;
  mount.in_flight_bytes -= bytes;
  in_flight_bytes_ -= bytes;
  WakeWaiting(mount);
}

void FlightBudget::Share::GiveBack(uint64_t bytes, absl::Time now) {
  absl::MutexLock lock(&budget_->mutex_);
  Mount& mount = budget_->mounts_.at(device_);
  PayBack(mount, bytes, now);
  budget_->Free(mount, *this, bytes);
}

void FlightBudget::Share::Give(uint64_t bytes, std::optional<uint64_t> read_bytes, absl::Time now) {
  absl::MutexLock lock(&budget_->mutex_);
  Mount& mount = budget_->mounts_.at(device_);
  const bool waits = std::any_of(mount.shares.begin(), mount.shares.end(),
                                 [](const Share* share) { return share->waits_; });
  // Where bytes a second are the limit, the throughput says nothing about bytes in flight.
  const bool limited = !std::exchange(mount.held_back, false) && waits;
  if (read_bytes.value_or(0) > 0) mount.limit.OnRead(*read_bytes, now, limited);
  // What failed may have been read all the same.
  PayBack(mount, bytes - std::min(bytes, read_bytes.value_or(bytes)), now);
  budget_->Free(mount, *this, bytes);
}

void FlightBudget::Share::SetStuck(uint64_t bytes) {
  absl::MutexLock lock(&budget_->mutex_);
  CHECK(budget_->in_flight_bytes_ >= bytes);
  Mount& mount = budget_->mounts_.at(device_);
  mount.stuck_bytes += bytes;
  budget_->in_flight_bytes_ -= bytes;
  budget_->WakeWaiting(mount);
}

void FlightBudget::Share::ClearStuck(uint64_t bytes) {
  absl::MutexLock lock(&budget_->mutex_);
  budget_->mounts_.at(device_).stuck_bytes -= bytes;
  budget_->in_flight_bytes_ += bytes;
}

uint64_t FlightBudget::Share::limit_bytes() const {
  absl::MutexLock lock(&budget_->mutex_);
  return budget_->mounts_.at(device_).limit.bytes();
}

FlightBudget::Share::~Share() {
  absl::MutexLock lock(&budget_->mutex_);
  const auto mount = budget_->mounts_.find(device_);
  CHECK(mount != budget_->mounts_.end() && in_flight_bytes_ == 0);
  mount->second.shares.remove(this);
  // A mount that nobody reads may be another one when its number comes again.
  if (mount->second.shares.empty()) budget_->mounts_.erase(mount);
}

}  // namespace forestage
