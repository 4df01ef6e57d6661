#include "client/src/read_places.h"

namespace forestage {

ReadPlaces::Mark::Mark(ReadPlaces& places, uint32_t shard_index) {
  for (Slot& slot : places.slots_) {
    uint64_t free = 0;
    if (!slot.shard.compare_exchange_strong(free, uint64_t{shard_index} + 1,
                                            std::memory_order_acq_rel)) {
      continue;
    }
    slot_ = &slot;
    return;
  }
}

ReadPlaces::Mark::~Mark() {
  if (slot_ == nullptr) return;
  slot_->place.store(kNowhere, std::memory_order_relaxed);
  slot_->shard.store(0, std::memory_order_release);
}

void ReadPlaces::Mark::Set(uint64_t offset, bool waits_for_daemon) {
  if (slot_ == nullptr) return;
  slot_->place.store(2 * offset + (waits_for_daemon ? 1 : 0), std::memory_order_relaxed);
}

std::vector<ReadPlaces::Place> ReadPlaces::List() const {
  std::vector<Place> places;
  for (const Slot& slot : slots_) {
    const uint64_t shard = slot.shard.load(std::memory_order_acquire);
    const uint64_t place = slot.place.load(std::memory_order_relaxed);
    if (shard == 0 || place == kNowhere) continue;
    places.push_back({.shard_index = static_cast<uint32_t>(shard - 1),
                      .offset = place / 2,
                      .waits_for_daemon = place % 2 == 1});
  }
  return places;
}

}  // namespace forestage
