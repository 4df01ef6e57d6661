#include "daemon/staging/flight_limit.h"

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "common/units.h"

namespace forestage {
namespace {

constexpr uint64_t kExtent = 8 * kMiB;
constexpr FlightLimit::Range kRange = {.min = 16 * kMiB, .start = 32 * kMiB, .max = 256 * kMiB};

// A device that answers each read after a fixed time and gives all together no more than a
// bandwidth: throughput follows what is in flight up to a knee, and not beyond it.
class Device {
 public:
  Device(absl::Duration latency, double bytes_per_second)
      : latency_(latency), bytes_per_second_(bytes_per_second) {}

  // Reads so many extents, with as many bytes in flight as the limit says.
  void Read(FlightLimit& limit, int extents, bool limited = true) {
    for (int i = 0; i < extents; ++i) {
      const double by_latency =
          static_cast<double>(limit.bytes()) / absl::ToDoubleSeconds(latency_);
      now_ += absl::Seconds(static_cast<double>(kExtent) / std::min(by_latency, bytes_per_second_));
      limit.OnRead(kExtent, now_, limited);
      highest_ = std::max(highest_, limit.bytes());
      lowest_ = std::min(lowest_, limit.bytes());
    }
  }
  uint64_t highest() const { return highest_; }
  uint64_t lowest() const { return lowest_; }

 private:
  const absl::Duration latency_;
  const double bytes_per_second_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t highest_ = 0;
  uint64_t lowest_ = ~uint64_t{0};
};

TEST(FlightLimitTest, ClimbsWhileThroughputDoes) {
  // 100 ms at 4 GB/s: 400 MB would be in flight.
  FlightLimit limit(kRange);
  Device device(absl::Milliseconds(100), 4e9);
  device.Read(limit, 2000);
  EXPECT_EQ(device.highest(), kRange.max);
  EXPECT_GE(limit.bytes(), kRange.max / 2);
}

TEST(FlightLimitTest, StopsWhereMoreGainsNothing) {
  // 40 ms at 2 GB/s: 80 MB keep it busy.
  FlightLimit limit(kRange);
  Device device(absl::Milliseconds(40), 2e9);
  device.Read(limit, 4000);
  EXPECT_GE(limit.bytes(), 64 * kMiB);
  EXPECT_LE(limit.bytes(), 162 * kMiB);
}

TEST(FlightLimitTest, ComesDownToWhatABusyDeviceNeeds) {
  // 1 ms at 2 GB/s: 2 MB keep it busy; what is more only waits.
  FlightLimit limit(kRange);
  Device device(absl::Milliseconds(1), 2e9);
  device.Read(limit, 2000);
  EXPECT_EQ(device.lowest(), kRange.min);
  EXPECT_LE(limit.bytes(), 24 * kMiB);
}

TEST(FlightLimitTest, LearnsNothingWhileDemandIsTheLimit) {
  FlightLimit limit(kRange);
  Device device(absl::Milliseconds(100), 4e9);
  device.Read(limit, 2000, /*limited=*/false);
  EXPECT_EQ(limit.bytes(), kRange.start);
}

TEST(FlightLimitTest, AFixedRangeIsKept) {
  FlightLimit limit({.min = kExtent, .start = kExtent, .max = kExtent});
  Device device(absl::Milliseconds(100), 4e9);
  device.Read(limit, 500);
  EXPECT_EQ(limit.bytes(), kExtent);
}

}  // namespace
}  // namespace forestage
