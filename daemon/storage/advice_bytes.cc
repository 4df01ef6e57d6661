#include "daemon/storage/advice_bytes.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include <sys/sysmacros.h>

#include "common/units.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

std::optional<uint64_t> ReadKib(const std::string& path) {
  std::ifstream file(path);
  uint64_t kib = 0;
  // 64 bits of bytes hold any sane figure; what is larger is as good as the cap.
  if (!(file >> kib)) return std::nullopt;
  return std::min(kib, kAdviceBytesCap / kKiB) * kKiB;
}

}  // namespace

uint64_t AdviceBytesMax(uint64_t device, const std::string& sysfs_root) {
  const std::string number = absl::StrCat(major(device), ":", minor(device));
  const std::string block = absl::StrCat(sysfs_root, "/dev/block/", number);
  uint64_t bytes = 0;
  // A partition's directory lies inside its disk's, which has the queue.
  for (const std::string& path :
       {absl::StrCat(sysfs_root, "/class/bdi/", number, "/read_ahead_kb"),
        absl::StrCat(block, "/queue/read_ahead_kb"), absl::StrCat(block, "/queue/max_sectors_kb"),
        absl::StrCat(block, "/../queue/read_ahead_kb"),
        absl::StrCat(block, "/../queue/max_sectors_kb")}) {
    bytes = std::max(bytes, ReadKib(path).value_or(0));
  }
  // 0 says that read-ahead is off; an advice is then no use, but small pieces do no harm.
  if (bytes == 0) bytes = kAdviceBytesDefault;
  return std::max(AlignDown(bytes, PageBytes()), PageBytes());
}

}  // namespace forestage
