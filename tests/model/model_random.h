// Chance from a seed, the same on every machine.
#pragma once

#include <cstdint>

namespace forestage {

class ModelRandom {
 public:
  explicit ModelRandom(uint64_t seed) : state_(seed) {}

  // Evenly enough for small bounds. Requires: bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  bool OneIn(uint64_t count) { return Below(count) == 0; }

 private:
  // SplitMix64.
  uint64_t Next() {
    uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  uint64_t state_;
};

}  // namespace forestage
