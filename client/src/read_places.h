// Where reads of slices stand, for a thread that watches over the others.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace forestage {

// Costs who reads two atomic operations a read, and two stores for each piece of it. Thread-safe.
class ReadPlaces {
  struct Slot;

 public:
  struct Place {
    uint32_t shard_index = 0;
    uint64_t offset = 0;
    // Else the storage is waited for, by a read of this process.
    bool waits_for_daemon = false;
  };

  // One read, in the thread that does it. What is more than kPlacesMax at a time is not seen.
  class Mark {
   public:
    Mark(ReadPlaces& places, uint32_t shard_index);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

    // It waits for the bytes from `offset` on.
    void Set(uint64_t offset, bool waits_for_daemon);

   private:
    Slot* slot_ = nullptr;
  };

  // Of reads that are on their way; one that moves meanwhile may be shown between two places.
  std::vector<Place> List() const;

 private:
  static constexpr size_t kPlacesMax = 32;
  static constexpr uint64_t kNowhere = ~uint64_t{0};
  struct alignas(64) Slot {
    // 0: free; else the shard's index + 1.
    std::atomic<uint64_t> shard = 0;
    // Twice the offset, and 1 more for the daemon; kNowhere before the first Set.
    std::atomic<uint64_t> place = kNowhere;
  };

  std::array<Slot, kPlacesMax> slots_;
};

}  // namespace forestage
