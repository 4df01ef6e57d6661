// What is read of one mount now, for status and metrics.
#pragma once

#include <cstdint>

namespace forestage {

struct MountFlight {
  // st_dev of the files.
  uint64_t device = 0;
  uint64_t in_flight_bytes = 0;
  // How many may be in flight, as found by trying.
  uint64_t limit_bytes = 0;
  // Of those in flight: of reads that do not come back.
  uint64_t stuck_bytes = 0;
  // How many may be read a second; 0: there is no limit.
  uint64_t bytes_per_second_max = 0;
  // Somebody waits for no other reason.
  bool held_back = false;
};

}  // namespace forestage
