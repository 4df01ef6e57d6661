#include "daemon/memory/memory_budget.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/errno_status.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// Nodes with thousands of containers have a mountinfo of some MiB.
constexpr size_t kTextBytesMax = 16 * 1024 * 1024;
constexpr size_t kReadBytes = 64 * 1024;

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

constexpr absl::string_view kV1LimitFile = "memory.limit_in_bytes";
// A row of memory.stat: the least limit of all ancestors, those not shown included.
constexpr absl::string_view kV1LeastLimitRow = "hierarchical_memory_limit";
constexpr absl::string_view kV2LimitFile = "memory.max";
// Above it the kernel slows a group down; staging must not bring it there.
constexpr absl::string_view kV2ThrottleFile = "memory.high";

// How the two versions name the same things.
struct CgroupFileNames {
  absl::string_view usage;
  absl::string_view row_prefix;  // of rows of memory.stat that count descendants too
  absl::string_view dirty_row;
  absl::string_view writeback_row;
  absl::string_view file_row;
};
constexpr CgroupFileNames kV1Names = {.usage = "memory.usage_in_bytes",
                                      .row_prefix = "total_",
                                      .dirty_row = "total_dirty",
                                      .writeback_row = "total_writeback",
                                      .file_row = "total_cache"};
constexpr CgroupFileNames kV2Names = {.usage = "memory.current",
                                      .row_prefix = "",
                                      .dirty_row = "file_dirty",
                                      .writeback_row = "file_writeback",
                                      .file_row = "file"};

// The file pages that the kernel can take back at once: clean, neither locked nor of shared memory,
// which are on other lists.
uint64_t ReclaimableBytes(absl::string_view stat, const CgroupFileNames& names) {
  const auto row = [&stat](const std::string& name) {
    return MemoryStatBytes(stat, name).value_or(0);
  };
  const uint64_t inactive = row(absl::StrCat(names.row_prefix, "inactive_file"));
  const uint64_t active = row(absl::StrCat(names.row_prefix, "active_file"));
  const uint64_t files = active > kNoMemoryLimit - inactive ? kNoMemoryLimit : inactive + active;
  return Less(Less(files, row(std::string(names.dirty_row))),
              row(std::string(names.writeback_row)));
}

}  // namespace

absl::string_view MemoryBoundKindName(MemoryBoundKind kind) {
  switch (kind) {
    case MemoryBoundKind::kNode:
      return "node";
    case MemoryBoundKind::kCgroup:
      return "cgroup";
    case MemoryBoundKind::kSetting:
      return "setting";
  }
  return "unknown";
}

uint64_t MemoryBound::available_bytes() const {
  return Less(Less(limit_bytes, used_bytes), headroom_bytes);
}

MemoryBudget::MemoryBudget(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::string> MemoryBudget::ReadText(const std::string& path) const {
  const std::string full_path = absl::StrCat(options_.root, path);
  const UniqueFd fd(open(full_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return ErrnoStatus(errno, full_path);
  std::string text;
  while (text.size() < kTextBytesMax) {
    const size_t filled = text.size();
    text.resize(filled + kReadBytes);
    const ssize_t count = read(fd.get(), text.data() + filled, kReadBytes);
    const int error = errno;
    text.resize(filled + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return text;
    if (count < 0 && error != EINTR) return ErrnoStatus(error, full_path);
  }
  return absl::ResourceExhaustedError(absl::StrCat(full_path, ": too long"));
}

MemoryReading MemoryBudget::Read() const {
  MemoryReading reading;
  AddNode(reading);
  AddCgroups(reading);
  if (options_.limit_bytes != kNoMemoryLimit) {
    reading.bounds.push_back({.kind = MemoryBoundKind::kSetting,
                              .name = "memory-limit",
                              .limit_bytes = options_.limit_bytes});
  }
  return reading;
}

void MemoryBudget::AddNode(MemoryReading& reading) const {
  const absl::StatusOr<std::string> meminfo = ReadText("/proc/meminfo");
  const auto row = [&meminfo](absl::string_view name) {
    return meminfo.ok() ? MeminfoBytes(*meminfo, name) : std::nullopt;
  };
  const std::optional<uint64_t> total = row("MemTotal");
  const std::optional<uint64_t> available = row("MemAvailable");
  if (!total.has_value() || !available.has_value()) {
    reading.unknown.push_back(absl::StrCat(
        "memory of this node: ", meminfo.ok() ? "/proc/meminfo has no MemTotal and MemAvailable"
                                              : meminfo.status().message()));
    return;
  }
  reading.bounds.push_back({.kind = MemoryBoundKind::kNode,
                            .name = "MemTotal of this node",
                            .limit_bytes = *total,
                            .used_bytes = Less(*total, *available),
                            .headroom_bytes = options_.headroom.BytesOf(*total)});
}

void MemoryBudget::AddCgroups(MemoryReading& reading) const {
  const absl::StatusOr<std::string> cgroup = ReadText("/proc/self/cgroup");
  const absl::StatusOr<std::string> mountinfo = ReadText("/proc/self/mountinfo");
  if (!cgroup.ok() || !mountinfo.ok()) {
    const absl::Status& error = cgroup.ok() ? mountinfo.status() : cgroup.status();
    reading.unknown.push_back(absl::StrCat("cgroups of the daemon: ", error.message()));
    return;
  }
  const std::vector<CgroupMount> mounts = ParseCgroupMounts(*mountinfo);
  for (const CgroupMembership& membership : ParseCgroupMemberships(*cgroup)) {
    AddChain(membership, mounts, reading);
  }
}

void MemoryBudget::AddChain(const CgroupMembership& membership,
                            const std::vector<CgroupMount>& mounts, MemoryReading& reading) const {
  const bool v1 = membership.version == CgroupVersion::kV1;
  for (const CgroupChain& chain : FindCgroupChains(membership, mounts)) {
    const std::string path = absl::StrCat(options_.root, chain.directories.front());
    if (access(path.c_str(), X_OK) != 0) continue;
    if (v1) {
      AddV1(chain, reading);
    } else {
      AddV2(chain, reading);
    }
    return;
  }
  reading.unknown.push_back(absl::StrCat("cgroup ", membership.path, " (version ", v1 ? 1 : 2,
                                         "): no mount shows it, so its limits are unknown"));
}

void MemoryBudget::AddV1(const CgroupChain& chain, MemoryReading& reading) const {
  uint64_t least = kNoMemoryLimit;
  for (const std::string& directory : chain.directories) {
    if (directory != chain.directories.front()) {
      // A group that does not account for its descendants does not limit them either.
      const absl::StatusOr<std::string> hierarchy =
          ReadText(absl::StrCat(directory, "/memory.use_hierarchy"));
      if (hierarchy.ok() && ParseMemoryCounter(*hierarchy) == 0) break;
    }
    const uint64_t limit = ReadLimit(directory, kV1LimitFile, reading);
    AddBound(chain.version, directory, kV1LimitFile, limit, reading);
    least = std::min(least, limit);
  }
  // Groups above what the mount shows: of these the kernel tells the least limit, though not its
  // use.
  const std::string& own = chain.directories.front();
  const absl::StatusOr<std::string> stat = ReadText(absl::StrCat(own, "/memory.stat"));
  const std::optional<uint64_t> row =
      stat.ok() ? MemoryStatBytes(*stat, kV1LeastLimitRow) : std::nullopt;
  const uint64_t limit =
      ParseMemoryLimit(absl::StrCat(row.value_or(kNoMemoryLimit))).value_or(kNoMemoryLimit);
  if (limit < least) AddBound(chain.version, own, kV1LeastLimitRow, limit, reading);
}

void MemoryBudget::AddV2(const CgroupChain& chain, MemoryReading& reading) const {
  for (const std::string& directory : chain.directories) {
    for (const absl::string_view file : {kV2LimitFile, kV2ThrottleFile}) {
      AddBound(chain.version, directory, file, ReadLimit(directory, file, reading), reading);
    }
  }
  // The root of the hierarchy has no limit file.
  const std::string& top = chain.directories.back();
  if (access(absl::StrCat(options_.root, top, "/", kV2LimitFile).c_str(), F_OK) == 0) {
    reading.unknown.push_back(
        absl::StrCat("limits of cgroups above ", top, ", which this process is not shown"));
  }
}

uint64_t MemoryBudget::ReadLimit(const std::string& directory, absl::string_view file,
                                 MemoryReading& reading) const {
  const absl::StatusOr<std::string> text = ReadText(absl::StrCat(directory, "/", file));
  // The root of version 2 and groups without the controller have no such file, and no limit.
  if (ErrnoOf(text.status()) == ENOENT) return kNoMemoryLimit;
  const std::optional<uint64_t> limit = text.ok() ? ParseMemoryLimit(*text) : std::nullopt;
  if (!limit.has_value()) {
    reading.unknown.push_back(absl::StrCat(file, " of cgroup ", directory));
  }
  return limit.value_or(kNoMemoryLimit);
}

void MemoryBudget::AddBound(CgroupVersion version, const std::string& directory,
                            absl::string_view limit_name, uint64_t limit_bytes,
                            MemoryReading& reading) const {
  if (limit_bytes == kNoMemoryLimit) return;
  const CgroupFileNames& names = version == CgroupVersion::kV1 ? kV1Names : kV2Names;
  MemoryBound bound = {.kind = MemoryBoundKind::kCgroup,
                       .name = absl::StrCat(limit_name, " of cgroup ", directory),
                       .limit_bytes = limit_bytes,
                       .headroom_bytes = options_.headroom.BytesOf(limit_bytes)};
  const absl::StatusOr<std::string> usage = ReadText(absl::StrCat(directory, "/", names.usage));
  const absl::StatusOr<std::string> stat = ReadText(absl::StrCat(directory, "/memory.stat"));
  const std::optional<uint64_t> used = usage.ok() ? ParseMemoryCounter(*usage) : std::nullopt;
  if (used.has_value() && stat.ok()) {
    bound.used_bytes = Less(*used, ReclaimableBytes(*stat, names));
    bound.file_bytes_max = MemoryStatBytes(*stat, names.file_row).value_or(kNoMemoryLimit);
  } else {
    // What cannot be read does not count against the daemon; the limit itself does.
    reading.unknown.push_back(absl::StrCat("use of cgroup ", directory));
  }
  reading.bounds.push_back(std::move(bound));
}

}  // namespace forestage
