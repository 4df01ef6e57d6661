#include "common/advice_bytes.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include <sys/sysmacros.h>

namespace forestage {
namespace {

std::optional<uint64_t> ReadFigure(const std::string& path, uint64_t unit_bytes) {
  std::ifstream file(path);
  uint64_t figure = 0;
  if (!(file >> figure)) return std::nullopt;
  // 64 bits of bytes hold any sane figure; what is larger is as good as the cap.
  return std::min(figure, kTiB / unit_bytes) * unit_bytes;
}

}  // namespace

ReadAheadSettings ReadReadAheadSettings(uint64_t device, const std::string& sysfs_root) {
  const std::string number = absl::StrCat(major(device), ":", minor(device));
  const std::string block = absl::StrCat(sysfs_root, "/dev/block/", number);
  ReadAheadSettings settings;
  // A partition's directory lies inside its disk's, which has the queue.
  for (const std::string& path : {absl::StrCat(sysfs_root, "/class/bdi/", number, "/read_ahead_kb"),
                                  absl::StrCat(block, "/queue/read_ahead_kb"),
                                  absl::StrCat(block, "/../queue/read_ahead_kb")}) {
    settings.read_ahead_bytes = ReadFigure(path, kKiB);
    if (!settings.read_ahead_bytes.has_value()) continue;
    settings.read_ahead_path = path;
    break;
  }
  for (const absl::string_view queue : {"/queue", "/../queue"}) {
    if (!settings.request_bytes_max.has_value()) {
      settings.request_bytes_max = ReadFigure(absl::StrCat(block, queue, "/max_sectors_kb"), kKiB);
    }
    if (!settings.optimal_io_bytes.has_value()) {
      settings.optimal_io_bytes = ReadFigure(absl::StrCat(block, queue, "/optimal_io_size"), 1);
    }
  }
  return settings;
}

uint64_t AdviceBytesMax(const ReadAheadSettings& settings) {
  uint64_t bytes =
      std::max(settings.read_ahead_bytes.value_or(0), settings.request_bytes_max.value_or(0));
  // 0 says that read-ahead is off; an advice is then no use, but small pieces do no harm.
  if (bytes == 0) bytes = kAdviceBytesDefault;
  bytes = std::min(bytes, kAdviceBytesCap);
  return std::max(AlignDown(bytes, PageBytes()), PageBytes());
}

}  // namespace forestage
