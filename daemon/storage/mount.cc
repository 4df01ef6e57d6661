#include "daemon/storage/mount.h"

#include <iterator>
#include <map>
#include <set>

#include "absl/synchronization/mutex.h"
#include "spdlog/spdlog.h"

namespace forestage {
namespace {

// Devices whose failed reads are remembered while none of their files is open.
constexpr size_t kFailedDevicesMax = 1024;

struct Registry {
  absl::Mutex mutex;
  std::map<uint64_t, std::weak_ptr<Mount>> mounts ABSL_GUARDED_BY(mutex);
  std::set<uint64_t> failed_devices ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

}  // namespace

absl::string_view FillWayName(FillWay way) {
  switch (way) {
    case FillWay::kUnknown:
      return "unknown";
    case FillWay::kFaults:
      return "faults";
    case FillWay::kAdvice:
      return "advice";
  }
  return "unknown";
}

std::shared_ptr<Mount> Mount::For(uint64_t device) {
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mutex);
  std::weak_ptr<Mount>& known = registry.mounts[device];
  std::shared_ptr<Mount> mount = known.lock();
  if (mount == nullptr) {
    // As many entries as there are mounts in use, not as there ever were.
    for (auto entry = registry.mounts.begin(); entry != registry.mounts.end();) {
      const bool gone = entry->second.expired() && entry->first != device;
      entry = gone ? registry.mounts.erase(entry) : std::next(entry);
    }
    mount = std::make_shared<Mount>(device);
    mount->read_failed_ = registry.failed_devices.contains(device);
    known = mount;
  }
  return mount;
}

void Mount::SawReadFail() {
  if (read_failed_.exchange(true)) return;
  Registry& registry = TheRegistry();
  absl::MutexLock lock(&registry.mutex);
  if (registry.failed_devices.size() < kFailedDevicesMax) registry.failed_devices.insert(device_);
}

void Mount::Learn(FillWay way) {
  if (fill_way_.exchange(way) == way) return;
  spdlog::info("mount device={} fill_way={}", DeviceText(device_), FillWayName(way).data());
}

}  // namespace forestage
