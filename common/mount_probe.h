// What a mount and this process's rights to a file of it allow, found by trying: how far read-ahead
// goes, whether the kernel tells the truth about residency, what a second open does.
// docs/storage.md explains each verdict.
//
// A passive probe costs microseconds, reads nothing from storage and changes nothing: the daemon
// makes one of every file that it opens. An active one reads up to kAdviceBytesCap and may drop the
// cached pages of the file that it is given: `forestage doctor` makes one for each mount.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/advice_bytes.h"
#include "common/file_mapping.h"
#include "common/units.h"

namespace forestage {

// The block that a page fault brings in where faults fill the page cache: a huge page (on x86-64,
// and on arm64 with pages of 4 KiB).
inline constexpr uint64_t kFaultBlockBytes = 2 * kMiB;

enum class Answer { kUnknown, kNo, kYes };
// "unknown", "no", "yes".
absl::string_view AnswerName(Answer answer);

struct Verdict {
  Answer answer = Answer::kUnknown;
  // What was seen, or why nothing could be; never empty after a probe.
  std::string reason;

  bool yes() const { return answer == Answer::kYes; }
  bool no() const { return answer == Answer::kNo; }
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// How bytes are brought into the page cache, and how it is verified that they are there.
enum class ReadingWay {
  kFaults,              // page faults that bring in whole blocks of kFaultBlockBytes
  kAdviseThenLook,      // read-ahead advice, then mincore
  kAdviseThenPopulate,  // read-ahead advice, then MADV_POPULATE_READ
  kRead,                // reads into a small buffer
};
// "faults", "advice+mincore", "advice+populate", "reads".
absl::string_view ReadingWayName(ReadingWay way);

// What does not depend on the file.
struct MountFacts {
  uint64_t device = 0;  // st_dev
  // See UniqueMountIdOf.
  std::optional<uint64_t> mount_id = std::nullopt;
  // Low 32 bits of statfs' f_type.
  uint32_t magic = 0;
  // "ext4", "fuse.sshfs"; "0x1234" where nobody has a name for it.
  std::string type = {};
  // Empty where this process does not see the mount, as a daemon in another mount namespace.
  std::string mount_point = {};
  bool overlay = false;
  bool fuse = false;
  // Files live in memory: nothing is read from storage.
  bool memory = false;
  ReadAheadSettings read_ahead = {};
  // What pieces of advice are cut to: see AdviceBytesMax.
  uint64_t advice_bytes_max = kAdviceBytesDefault;
};

struct MountProbe {
  MountFacts mount;
  // The file is this process's own, or it may act as if, or it may write the file: whom the kernel
  // tells the truth about residency.
  Verdict rights;
  // Files can be mapped.
  Verdict mapping;
  // MADV_POPULATE_READ exists and works.
  Verdict populate;
  // mincore tells the truth about this file.
  Verdict mincore;
  // So does cachestat.
  Verdict cachestat;
  // A second open leaves what the page cache holds of the file.
  Verdict second_open;
  // Read-ahead advice brings data in.
  Verdict advice;
  // A page fault on a mapping under MADV_HUGEPAGE brings in the whole block around it. Only from an
  // active probe, and from a daemon that has read there.
  Verdict faults;
  // Bytes that one advice of kAdviceBytesCap bytes brought in; only from an active probe.
  std::optional<uint64_t> advice_bytes_measured;
  // The length of that advice: less in a file that is not large enough.
  uint64_t advice_bytes_asked = kAdviceBytesCap;

  // Requires: a probe made it.
  ReadingWay way() const;
};

struct NamedVerdict {
  // "mapping", "populate", "mincore", "cachestat", "second_open", "advice", "faults".
  absl::string_view name;
  Verdict verdict;
};
std::vector<NamedVerdict> VerdictsOf(const MountProbe& probe);

// "8:1", as in /proc/self/mountinfo.
std::string DeviceText(uint64_t device);

struct MountProbeOptions {
  bool active = false;
  // How long an active probe waits for what it has advised.
  absl::Duration patience = absl::Seconds(3);
  std::string sysfs_root = "/sys";
  std::string mountinfo_path = "/proc/self/mountinfo";
};

// Of the mount of an open regular file. Errors of fstat and fstatfs. Blocks no longer than those.
absl::StatusOr<MountFacts> ReadMountFacts(int fd, const MountProbeOptions& options = {});

// Probes with `fd`, open for reading, and `mapping`, a mapping of the whole file, or the status
// with which the file system refused one. Never fails: what could not be found out is "unknown".
// Active: blocks on storage.
MountProbe ProbeMount(int fd, MountFacts mount, const absl::StatusOr<FileMapping>& mapping,
                      const MountProbeOptions& options = {});

// Facts, mapping and probe of one file. Active: the error of a read of its first byte too.
absl::StatusOr<MountProbe> ProbeFile(int fd, const MountProbeOptions& options = {});

// Whether the kernel tells this process the truth about the residency of the file at `path`, which
// belongs to `owner`. `overlay`: it lies on an overlay, where only the owner is sure. Asks for
// rights only, opens nothing.
Verdict ResidencyRights(const std::string& path, uint32_t owner, bool overlay);
// This process has CAP_FOWNER in effect.
bool HasFownerCapability();
// RLIMIT_MEMLOCK, the soft limit.
uint64_t MemlockBytesMax();

}  // namespace forestage
