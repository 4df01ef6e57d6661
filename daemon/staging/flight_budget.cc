#include "daemon/staging/flight_budget.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "daemon/limits.h"

namespace forestage {

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
                                                        std::shared_ptr<LaneWaker> waker) {
  std::unique_ptr<Share> share(new Share(shared_from_this(), device, std::move(waker)));
  absl::MutexLock lock(&mutex_);
  mounts_.try_emplace(device, RangeOf()).first->second.shares.push_back(share.get());
  return share;
}

std::vector<MountFlight> FlightBudget::Flights() const {
  std::vector<MountFlight> flights;
  absl::MutexLock lock(&mutex_);
  for (const auto& [device, mount] : mounts_) {
    flights.push_back({.device = device,
                       .in_flight_bytes = mount.in_flight_bytes,
                       .limit_bytes = mount.limit.bytes(),
                       .stuck_bytes = mount.stuck_bytes});
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

bool FlightBudget::Share::TryTake(uint64_t bytes, bool urgent) {
  absl::MutexLock lock(&budget_->mutex_);
  Mount& mount = budget_->mounts_.at(device_);
  if (!budget_->Allows(mount, *this, bytes, urgent)) {
    waits_ = true;
    if (budget_->in_flight_bytes_ + bytes > budget_->options_.node_bytes_max) {
      budget_->node_refused_ = true;
    }
    return false;
  }
  waits_ = false;
  in_flight_bytes_ += bytes;
  mount.in_flight_bytes += bytes;
  budget_->in_flight_bytes_ += bytes;
  return true;
}

void FlightBudget::Share::Withdraw() {
  absl::MutexLock lock(&budget_->mutex_);
  if (!std::exchange(waits_, false)) return;
  budget_->WakeWaiting(budget_->mounts_.at(device_));
}

void FlightBudget::Share::Give(uint64_t bytes, uint64_t read_bytes, absl::Time now) {
  absl::MutexLock lock(&budget_->mutex_);
  Mount& mount = budget_->mounts_.at(device_);
  CHECK(in_flight_bytes_ >= bytes);
  const bool limited = std::any_of(mount.shares.begin(), mount.shares.end(),
                                   [](const Share* share) { return share->waits_; });
  if (read_bytes > 0) mount.limit.OnRead(read_bytes, now, limited);
  in_flight_bytes_ -= bytes;
  mount.in_flight_bytes -= bytes;
  budget_->in_flight_bytes_ -= bytes;
  budget_->WakeWaiting(mount);
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
