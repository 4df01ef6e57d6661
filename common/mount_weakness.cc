#include "common/mount_weakness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/units.h"

namespace forestage {
namespace {

// Below it, the count of requests and not the storage decides how fast a mount is read.
constexpr uint64_t kAdviceBytesWanted = 1 * kMiB;
constexpr uint64_t kAdviceKibibytesWanted = kAdviceBytesCap / kKiB;

Weakness NoMappings(const MountProbe& probe) {
  return {.id = "no_mappings",
          .what = absl::StrCat("files cannot be mapped: ", probe.mapping.reason),
          .cost =
              "every rank copies every byte through read calls of its own, and what the daemon "
              "reads may not even stay in memory",
          .change =
              "mount without direct_io (FUSE: drop `-o direct_io`), or copy the checkpoint to "
              "a file system that can be mapped"};
}

Weakness SecondOpenDrops(const MountProbe& probe) {
  return {.id = "second_open_drops_cache",
          .what = absl::StrCat("a second open of a file may drop all of it from memory: ",
                               probe.second_open.reason),
          .cost =
              "an engine that opens its files itself throws away what the daemon has staged, "
              "and storage is read once more by each; ranks that load through Forestage share "
              "their opens",
          .change =
              "mount with `-o kernel_cache` (libfuse), or let the file system's open reply "
              "set keep_cache (FOPEN_KEEP_CACHE) while a file is unchanged"};
}

std::string ReadAheadCommand(const MountFacts& mount) {
  if (!mount.read_ahead.read_ahead_path.empty()) {
    return absl::StrCat("echo ", kAdviceKibibytesWanted, " > ", mount.read_ahead.read_ahead_path);
  }
  if (mount.overlay) {
    return absl::StrCat(
        "nothing on the overlay itself; keep checkpoints on a volume, not in an "
        "image, and echo ",
        kAdviceKibibytesWanted, " > /sys/class/bdi/MAJOR:MINOR/read_ahead_kb there");
  }
  return absl::StrCat("echo ", kAdviceKibibytesWanted, " > /sys/class/bdi/",
                      DeviceText(mount.device),
                      "/read_ahead_kb, or the file of that name of the file system's own entry "
                      "under /sys/class/bdi (btrfs-N and the like)");
}

// The advice that counts: measured where it was.
uint64_t AdviceBytesOf(const MountProbe& probe) {
  return std::max<uint64_t>(probe.advice_bytes_measured.value_or(0), probe.mount.advice_bytes_max);
}

Weakness SmallReadAhead(const MountProbe& probe) {
  return {.id = "small_read_ahead",
          .what = absl::StrCat("one read-ahead advice brings in ",
                               FormatByteSize(AdviceBytesOf(probe)), " at most"),
          .cost =
              "storage is read in pieces of that size, so its latency counts that much more "
              "often; a reader that asks for one piece at a time is several times slower",
          .change = ReadAheadCommand(probe.mount)};
}

Weakness AdviceIgnored(const MountProbe& probe) {
  return {.id = "advice_ignored",
          .what = absl::StrCat("read-ahead advice brings nothing in: ", probe.advice.reason),
          .cost =
              "the daemon has to read every byte through a buffer, which takes about twice the "
              "processor time",
          .change = ReadAheadCommand(probe.mount)};
}

Weakness ReadAheadCut(const MountProbe& probe) {
  return {
      .id = "advice_cut",
      .what = absl::StrCat("an advice brought in ", FormatByteSize(*probe.advice_bytes_measured),
                           ", although ", FormatByteSize(probe.mount.advice_bytes_max), " are set"),
      .cost =
          "the daemon fills the rest by reads, which takes more processor time; or storage "
          "was too slow to tell within the time of the test",
      .change =
          "raise what the file system allows for one request (FUSE: max_read and "
          "max_pages; NFS: rsize), or ask again when the storage is idle"};
}

Weakness NoPopulate(const MountProbe& probe) {
  return {.id = "no_populate",
          .what = absl::StrCat("MADV_POPULATE_READ cannot be used: ", probe.populate.reason),
          .cost =
              "pages cannot be checked before they are used: a disk error may end an engine "
              "with SIGBUS",
          .change = "run Linux 5.14 or later"};
}

Weakness CachestatOff(const MountProbe& probe) {
  return {.id = "no_cachestat",
          .what = absl::StrCat("cachestat cannot be believed: ", probe.cachestat.reason),
          .cost = "looking whether a file is in memory costs about ten times as much, by mincore",
          .change = probe.mount.overlay
                        ? "keep checkpoints on a volume, not in the image's overlay"
                        : "run Linux 6.5 or later and allow cachestat in the seccomp profile; "
                          "otherwise nothing has to be done"};
}

}  // namespace

Weakness ResidencyUnknownWeakness(uint64_t unknown_files, bool overlay, const std::string& reason) {
  return {.id = "residency_unknown",
          .what = absl::StrCat("of ", unknown_files, unknown_files == 1 ? " file" : " files",
                               " the kernel does not tell what is in memory: ", reason),
          .cost =
              "warm files are read or populated once more, and bytes_read counts every byte; "
              "nothing is wrong with the data",
          .change = absl::StrCat(
              "give the daemon the capability: AmbientCapabilities=CAP_FOWNER (systemd), "
              "`setcap cap_fowner+ep forestaged`, or securityContext.capabilities.add: [FOWNER] "
              "(Kubernetes, as root); or let the daemon's user own the files",
              overlay ? "" : " or write them")};
}

std::vector<Weakness> WeaknessesOf(const MountProbe& probe) {
  std::vector<Weakness> weaknesses;
  if (probe.mapping.no()) weaknesses.push_back(NoMappings(probe));
  if (probe.second_open.no()) weaknesses.push_back(SecondOpenDrops(probe));
  if (!probe.mount.memory && probe.mapping.yes()) {
    if (probe.advice.no()) weaknesses.push_back(AdviceIgnored(probe));
    if (AdviceBytesOf(probe) < kAdviceBytesWanted) weaknesses.push_back(SmallReadAhead(probe));
    if (probe.advice.yes() &&
        probe.advice_bytes_measured.value_or(UINT64_MAX) <
            std::min(probe.mount.advice_bytes_max, probe.advice_bytes_asked)) {
      weaknesses.push_back(ReadAheadCut(probe));
    }
  }
  if (probe.mapping.yes() && probe.mincore.no()) {
    weaknesses.push_back(ResidencyUnknownWeakness(1, probe.mount.overlay, probe.mincore.reason));
  }
  if (probe.mapping.yes() && probe.populate.no()) weaknesses.push_back(NoPopulate(probe));
  // Who may not ask hears it above.
  if (probe.cachestat.no() && !probe.mincore.no() && probe.mapping.yes()) {
    weaknesses.push_back(CachestatOff(probe));
  }
  return weaknesses;
}

std::vector<Weakness> WeaknessesOfIoUring(const absl::Status& io_uring) {
  if (io_uring.ok()) return {};
  return {{.id = "io_uring_refused",
           .what = std::string(io_uring.message()),
           .cost = "the daemon reads with threads, whose reads in flight are fewer and cost more "
                   "processor time",
           .change =
               "allow io_uring_setup, io_uring_enter and io_uring_register in the container's "
               "seccomp profile, and set kernel.io_uring_disabled=0"}};
}

}  // namespace forestage
