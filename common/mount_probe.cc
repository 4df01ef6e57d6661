#include "common/mount_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "common/cached_bytes.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/mount_id.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace forestage {
namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000
#endif

constexpr uint32_t kFuseMagic = 0x65735546;
constexpr uint32_t kOverlayMagic = 0x794c7630;
constexpr uint32_t kTmpfsMagic = 0x01021994;
constexpr uint32_t kRamfsMagic = 0x858458f6;
constexpr uint32_t kHugetlbfsMagic = 0x958458f6;

struct NamedFileSystem {
  uint32_t magic;
  const char* name;
};
// For mounts that this process does not see.
constexpr std::array<NamedFileSystem, 16> kFileSystemNames = {{{0xef53, "ext4"},
                                                               {0x58465342, "xfs"},
                                                               {0x9123683e, "btrfs"},
                                                               {0xf2f52010, "f2fs"},
                                                               {0x2fc12fc1, "zfs"},
                                                               {0x6969, "nfs"},
                                                               {0x00c36400, "ceph"},
                                                               {0x0bd00bd0, "lustre"},
                                                               {0x47504653, "gpfs"},
                                                               {0x19830326, "beegfs"},
                                                               {0xfe534d42, "smb"},
                                                               {0x01021997, "9p"},
                                                               {0xe0f5e1e2, "erofs"},
                                                               {kFuseMagic, "fuse"},
                                                               {kOverlayMagic, "overlay"},
                                                               {kTmpfsMagic, "tmpfs"}}};

// User id that stands for "not in this user namespace".
constexpr uid_t kOverflowUid = 65534;
// Of a large file, how much is looked at: a passive probe is made of every file, and stays cheap.
constexpr uint64_t kActiveLookBytes = 64 * kMiB;
constexpr uint64_t kPassiveLookBytes = 4 * kMiB;
constexpr absl::Duration kPollPeriod = absl::Milliseconds(2);
// Pages lie in folios of up to so much, which are dropped whole or not at all.
constexpr uint64_t kFolioBytesMax = 2 * kMiB;
// An advice has ended when for so long, and for this multiple of the time that its first page took,
// no further page came.
constexpr absl::Duration kQuietMin = absl::Milliseconds(150);
constexpr double kQuietPerFirstPage = 4;

Verdict Yes(std::string reason) { return {Answer::kYes, std::move(reason)}; }
Verdict No(std::string reason) { return {Answer::kNo, std::move(reason)}; }
Verdict Unknown(std::string reason) { return {Answer::kUnknown, std::move(reason)}; }

std::string ErrnoText(int error_number) {
  return std::string(ErrnoStatus(error_number, "it fails").message());
}

// Whether a byte can be read: what cannot be read says nothing of how the mount reads.
absl::Status CheckReadable(int fd, uint64_t offset) {
  char byte = 0;
  Interruptions interruptions;
  while (true) {
    const ssize_t count = pread(fd, &byte, 1, static_cast<off_t>(offset));
    if (count == 1) return absl::OkStatus();
    if (count == 0) {
      return absl::OutOfRangeError(absl::StrCat("read at offset ", offset, ": the file ends here"));
    }
    if (interruptions.MayRetry(errno)) continue;
    return ErrnoStatus(errno, absl::StrCat("read at offset ", offset));
  }
}

// One file of an active or passive probe.
class Prober {
 public:
  Prober(int fd, MountFacts mount, const absl::StatusOr<FileMapping>& mapping,
         const MountProbeOptions& options)
      : fd_(fd), options_(options), mapping_(mapping) {
    probe_.mount = std::move(mount);
    struct stat attributes = {};
    if (fstat(fd, &attributes) == 0) {
      owner_ = attributes.st_uid;
      bytes_ = static_cast<uint64_t>(attributes.st_size);
    }
    if (mapping_.ok()) bytes_ = std::min<uint64_t>(bytes_, mapping_->bytes().size());
  }

  MountProbe Run() {
    ProbeMapping();
    probe_.rights =
        ResidencyRights(absl::StrCat("/proc/self/fd/", fd_), owner_, probe_.mount.overlay);
    if (options_.active) first_page_read_ = CheckReadable(fd_, 0).ok();
    ProbeMincore();
    ProbeAdvice();
    ProbeFaults();
    ProbeCachestat();
    ProbeSecondOpen();
    return std::move(probe_);
  }

 private:
  bool mapped() const { return mapping_.ok() && !mapping_->empty(); }
  std::byte* address(uint64_t offset) const {
    // The address is constant; nothing is written through it.
    return const_cast<std::byte*>(mapping_->bytes().data()) + offset;
  }

  // One byte a page; empty where the kernel does not answer. Requires: mapped(), page-aligned.
  std::vector<unsigned char> Look(uint64_t offset, uint64_t bytes) const {
    std::vector<unsigned char> pages(DivideRoundingUp(bytes, PageBytes()));
    if (mincore(address(offset), bytes, pages.data()) != 0) pages.clear();
    for (unsigned char& page : pages) page &= 1;
    return pages;
  }
  std::optional<uint64_t> PagesIn(uint64_t offset, uint64_t bytes) const {
    const std::vector<unsigned char> pages = Look(offset, bytes);
    if (pages.empty()) return std::nullopt;
    return static_cast<uint64_t>(std::count(pages.begin(), pages.end(), 1));
  }
  uint64_t look_bytes() const {
    return std::min(bytes_, options_.active ? kActiveLookBytes : kPassiveLookBytes);
  }

  void ProbeMapping();
  void ProbeMincore();
  void ProbeCachestat();
  void ProbeSecondOpen();
  void ProbeAdvice();
  void ProbeFaults();
  std::optional<uint64_t> FindColdRange(uint64_t bytes);
  uint64_t WaitForAdvice(uint64_t offset, uint64_t bytes) const;

  const int fd_;
  const MountProbeOptions& options_;
  const absl::StatusOr<FileMapping>& mapping_;
  MountProbe probe_;
  uid_t owner_ = kOverflowUid;
  uint64_t bytes_ = 0;
  bool first_page_read_ = false;
};

void Prober::ProbeMapping() {
  if (!mapping_.ok()) {
    const int error_number = ErrnoOf(mapping_.status());
    probe_.mapping = error_number == ENODEV
                         ? No("mmap: the file system refuses mappings (ENODEV); FUSE does with "
                              "direct_io")
                         : No(absl::StrCat("mmap: ", mapping_.status().message()));
    probe_.populate = No("files cannot be mapped");
    return;
  }
  if (!mapped()) {
    probe_.mapping = Unknown("the file is empty");
    probe_.populate = Unknown("the file is empty");
    return;
  }
  probe_.mapping = Yes("a file was mapped");
  // Of no bytes, it only says whether the kernel knows it.
  const uint64_t bytes = options_.active ? std::min(bytes_, PageBytes()) : 0;
  if (madvise(address(0), bytes, MADV_POPULATE_READ) == 0) {
    probe_.populate = Yes(bytes > 0 ? "a page was populated" : "the kernel knows it");
  } else if (errno == EINVAL) {
    probe_.populate = No("the kernel does not know it: Linux 5.14 or later does");
  } else {
    probe_.populate = No(absl::StrCat("MADV_POPULATE_READ: ", ErrnoText(errno)));
  }
}

void Prober::ProbeMincore() {
  if (!mapped()) {
    probe_.mincore = Unknown("nothing is mapped to ask about");
    if (probe_.mapping.no()) probe_.mincore = No("files cannot be mapped");
    return;
  }
  const std::optional<uint64_t> cached = PagesIn(0, look_bytes());
  if (!cached.has_value()) {
    probe_.mincore = No(absl::StrCat("mincore: ", ErrnoText(errno)));
    return;
  }
  // To whom it lies, it says that every page is there; so one page that is not shows that it does
  // not lie, whatever the rights look like from here.
  if (*cached < DivideRoundingUp(look_bytes(), PageBytes())) {
    if (first_page_read_ && Look(0, 1)[0] == 0) {
      probe_.mincore = No("a page that was just read is said to be missing");
      return;
    }
    probe_.mincore = Yes("it tells of pages that are missing");
    return;
  }
  if (!probe_.rights.yes()) {
    probe_.mincore = No(
        absl::StrCat("the kernel says \"all in memory\" of such a file: ", probe_.rights.reason));
    return;
  }
  probe_.mincore = Yes(probe_.rights.reason);
}

void Prober::ProbeCachestat() {
  const absl::StatusOr<uint64_t> cached = CachedBytes(fd_, 0, std::max<uint64_t>(look_bytes(), 1));
  if (!cached.ok()) {
    const int error_number = ErrnoOf(cached.status());
    if (error_number == ENOSYS) {
      probe_.cachestat =
          No("the kernel has none (ENOSYS): Linux 6.5 or later has, unless a "
             "seccomp profile hides it");
    } else if (error_number == EPERM) {
      probe_.cachestat =
          No(absl::StrCat("refused (EPERM), by a seccomp profile or since ",
                          probe_.rights.yes() ? "of the kernel's own rule" : probe_.rights.reason));
    } else {
      probe_.cachestat = No(absl::StrCat("cachestat: ", ErrnoText(error_number)));
    }
    return;
  }
  uint64_t there = first_page_read_ ? 1 : 0;
  if (probe_.mincore.yes()) there = PagesIn(0, look_bytes()).value_or(there);
  if (there == 0) {
    probe_.cachestat = Unknown("no page of the file is in memory to test it with");
  } else if (*cached == 0) {
    probe_.cachestat = No(absl::StrCat("it counts 0 of ", there, " pages that are in memory",
                                       probe_.mount.overlay ? ", as always on an overlay" : ""));
  } else {
    probe_.cachestat = Yes("it counts pages that are in memory");
  }
}

void Prober::ProbeSecondOpen() {
  if (!options_.active) {
    probe_.second_open =
        probe_.mount.fuse
            ? No("not tested, since the test drops pages; FUSE does drop them without keep_cache")
            : Yes("not tested; only FUSE is known to drop pages");
    return;
  }
  if (!probe_.mincore.yes() || !first_page_read_) {
    probe_.second_open = Unknown("whether pages are still there cannot be asked");
    if (probe_.mount.fuse) {
      probe_.second_open = No("cannot be tested; FUSE does drop pages without keep_cache");
    }
    return;
  }
  const uint64_t before = PagesIn(0, look_bytes()).value_or(0);
  const UniqueFd second(
      open(absl::StrCat("/proc/self/fd/", fd_).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!second.valid()) {
    probe_.second_open = Unknown(absl::StrCat("a second open is refused: ", ErrnoText(errno)));
    return;
  }
  const uint64_t after = PagesIn(0, look_bytes()).value_or(0);
  if (before == 0) {
    probe_.second_open = Unknown("no page of the file is in memory to test it with");
  } else if (after * 2 < before) {
    // Some may go at any time, when memory is short; a file system that drops, drops all.
    probe_.second_open = No(absl::StrCat("a second open dropped ", before - after, " of ", before,
                                         " pages from memory"));
  } else {
    probe_.second_open =
        Yes(absl::StrCat("a second open left ", after, " of ", before, " pages in memory"));
  }
}

// Where a range of so many bytes begins of which nothing is cached. Drops the last range of the
// file, when all are cached and nobody uses it.
std::optional<uint64_t> Prober::FindColdRange(uint64_t bytes) {
  if (bytes_ < bytes) return std::nullopt;
  const uint64_t alignment = bytes >= kFolioBytesMax ? kFolioBytesMax : PageBytes();
  uint64_t offset = AlignDown(bytes_ - bytes, alignment);
  for (uint64_t tries = kActiveLookBytes / bytes; tries > 0; --tries) {
    if (PagesIn(offset, bytes) == uint64_t{0}) return offset;
    if (offset < bytes) break;
    offset -= bytes;
  }
  offset = AlignDown(bytes_ - bytes, alignment);
  (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      POSIX_FADV_DONTNEED);
  if (PagesIn(offset, bytes) == uint64_t{0}) return offset;
  return std::nullopt;
}

// Pages from the range's beginning that came before it was quiet, in bytes.
uint64_t Prober::WaitForAdvice(uint64_t offset, uint64_t bytes) const {
  const absl::Time begin = absl::Now();
  absl::Time last_news = begin;
  absl::Duration quiet = absl::InfiniteDuration();
  uint64_t seen = 0;
  while (true) {
    const std::vector<unsigned char> pages = Look(offset, bytes);
    const uint64_t now_there = static_cast<uint64_t>(std::count(pages.begin(), pages.end(), 1));
    const absl::Time now = absl::Now();
    if (now_there > seen) {
      if (seen == 0) quiet = std::max(kQuietMin, (now - begin) * kQuietPerFirstPage);
      seen = now_there;
      last_news = now;
    }
    const bool all = now_there == pages.size();
    if (all || now - last_news >= quiet || now - begin >= options_.patience) {
      return std::min(seen * PageBytes(), bytes);
    }
    absl::SleepFor(kPollPeriod);
  }
}

void Prober::ProbeAdvice() {
  if (probe_.mount.memory) {
    probe_.advice = Yes("files are in memory already; nothing is read ahead");
    return;
  }
  if (!options_.active) {
    probe_.advice = Unknown("not tested, since the test reads from storage");
    return;
  }
  if (!probe_.mincore.yes()) {
    probe_.advice = Unknown("what an advice brought in cannot be asked");
    return;
  }
  uint64_t bytes = AlignDown(std::min(bytes_ / 2, kAdviceBytesCap), PageBytes());
  if (bytes > kFolioBytesMax) bytes = AlignDown(bytes, kFolioBytesMax);
  if (bytes < kAdviceBytesDefault) {
    probe_.advice = Unknown("the file is too small to test it with");
    return;
  }
  const std::optional<uint64_t> offset = FindColdRange(bytes);
  if (!offset.has_value()) {
    probe_.advice = Unknown(
        "the file is in memory and cannot be dropped from there: it is in use, or about to be "
        "written");
    return;
  }
  const int error = posix_fadvise(fd_, static_cast<off_t>(*offset), static_cast<off_t>(bytes),
                                  POSIX_FADV_WILLNEED);
  if (error != 0) {
    probe_.advice = No(absl::StrCat("posix_fadvise: ", ErrnoText(error)));
    return;
  }
  const uint64_t taken = WaitForAdvice(*offset, bytes);
  const absl::Status readable = CheckReadable(fd_, *offset);
  if (taken == 0 && !readable.ok()) {
    probe_.advice = Unknown(absl::StrCat("storage fails: ", readable.message()));
    return;
  }
  probe_.advice_bytes_measured = taken;
  probe_.advice_bytes_asked = bytes;
  if (taken == 0) {
    probe_.advice = No(absl::StrCat("within ", absl::FormatDuration(options_.patience),
                                    ", nothing came of an advice of ", FormatByteSize(bytes)));
  } else {
    probe_.advice = Yes(absl::StrCat("an advice of ", FormatByteSize(bytes), " brought in ",
                                     FormatByteSize(taken)));
  }
}

void Prober::ProbeFaults() {
  if (probe_.mount.memory) {
    probe_.faults = Unknown("files are in memory already");
    return;
  }
  if (!options_.active) {
    probe_.faults = Unknown("not tested, since the test reads from storage");
    return;
  }
  if (!probe_.mincore.yes() || !probe_.populate.yes()) {
    probe_.faults = Unknown("what a fault brought in cannot be asked");
    return;
  }
  const std::optional<uint64_t> offset = FindColdRange(kFaultBlockBytes);
  if (!offset.has_value()) {
    probe_.faults = Unknown(bytes_ < kFaultBlockBytes
                                ? "the file is too small to test it with"
                                : "the file is in memory and cannot be dropped from there");
    return;
  }
  const absl::StatusOr<FileMapping> own = FileMapping::MapReadOnly(fd_, bytes_);
  if (!own.ok()) {
    probe_.faults = Unknown(absl::StrCat("a second mapping: ", own.status().message()));
    return;
  }
  own->FaultInHugePages();
  char byte = 0;
  const uint64_t last_page = *offset + kFaultBlockBytes - PageBytes();
  // Where the block is on its way the read waits for it; where it is not it brings in a page.
  if (!own->PopulateRead(*offset, *offset + PageBytes()).ok() ||
      pread(fd_, &byte, 1, static_cast<off_t>(last_page)) != 1) {
    probe_.faults = Unknown("a page cannot be read");
    return;
  }
  const uint64_t taken = PagesIn(*offset, kFaultBlockBytes).value_or(0) * PageBytes();
  const std::string reason = absl::StrCat("a fault brought in ", FormatByteSize(taken), " of ",
                                          FormatByteSize(kFaultBlockBytes));
  probe_.faults = taken > kFaultBlockBytes / 2 ? Yes(reason) : No(reason);
}

struct MountLine {
  std::string type;
  std::string mount_point;
};

// mountinfo's "\040" for a space and the like.
std::string Unescape(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t k) { return text[i + k] >= '0' && text[i + k] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && digit(1) && digit(2) && digit(3)) {
      result.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                         (text[i + 3] - '0')));
      i += 3;
    } else {
      result.push_back(text[i]);
    }
  }
  return result;
}

// The line of the mount, by its number, else of any mount of the device.
std::optional<MountLine> FindMountLine(const std::string& path, std::optional<uint64_t> mount_id,
                                       uint64_t device) {
  std::ifstream file(path);
  std::optional<MountLine> found;
  for (std::string line; std::getline(file, line);) {
    // 36 35 98:0 /root /mount/point options [optional fields] - type source super-options
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 2) continue;
    uint64_t id = 0;
    const bool same_mount =
        mount_id.has_value() && absl::SimpleAtoi(words[0], &id) && id == *mount_id;
    const bool same_device = words[2] == DeviceText(device);
    if (!same_mount && (!same_device || found.has_value())) continue;
    found = MountLine{.type = std::string(dash[1]), .mount_point = Unescape(words[4])};
    if (same_mount) break;
  }
  return found;
}

std::string NameOfMagic(uint32_t magic) {
  for (const NamedFileSystem& named : kFileSystemNames) {
    if (named.magic == magic) return named.name;
  }
  return absl::StrCat("0x", absl::Hex(magic));
}

}  // namespace

absl::string_view AnswerName(Answer answer) {
  switch (answer) {
    case Answer::kUnknown:
      return "unknown";
    case Answer::kNo:
      return "no";
    case Answer::kYes:
      return "yes";
  }
  return "unknown";
}

absl::string_view ReadingWayName(ReadingWay way) {
  switch (way) {
    case ReadingWay::kFaults:
      return "faults";
    case ReadingWay::kAdviseThenLook:
      return "advice+mincore";
    case ReadingWay::kAdviseThenPopulate:
      return "advice+populate";
    case ReadingWay::kRead:
      return "reads";
  }
  return "reads";
}

ReadingWay MountProbe::way() const {
  if (mapping.no()) return ReadingWay::kRead;
  if (mincore.yes()) return faults.yes() ? ReadingWay::kFaults : ReadingWay::kAdviseThenLook;
  return populate.no() ? ReadingWay::kRead : ReadingWay::kAdviseThenPopulate;
}

std::vector<NamedVerdict> VerdictsOf(const MountProbe& probe) {
  return {{"mapping", probe.mapping},
          {"populate", probe.populate},
          {"mincore", probe.mincore},
          {"cachestat", probe.cachestat},
          {"second_open", probe.second_open},
          {"advice", probe.advice},
          {"faults", probe.faults}};
}

std::string DeviceText(uint64_t device) { return absl::StrCat(major(device), ":", minor(device)); }

bool HasFownerCapability() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  return (sets[0].effective & (1U << CAP_FOWNER)) != 0;
}

uint64_t MemlockBytesMax() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur;
}

// The kernel's own rule (can_do_mincore), asked conservatively: a "no" too many costs a
// verification by populating, a "yes" too many would take its lie for a fact.
Verdict ResidencyRights(const std::string& path, uint32_t owner, bool overlay) {
  if (owner != kOverflowUid) {
    if (geteuid() == owner) return Yes("this process owns the file");
    if (HasFownerCapability()) return Yes("this process has CAP_FOWNER");
  }
  const std::string stranger =
      absl::StrCat("the file belongs to uid ", owner, ", this process is uid ", geteuid(),
                   " and has no CAP_FOWNER");
  // Through an overlay the kernel looks at the file below, whose file system may be read-only.
  if (overlay) return No(stranger);
  if (eaccess(path.c_str(), W_OK) == 0) {
    return Yes("this process may write the file");
  }
  return No(absl::StrCat(stranger, " and may not write it"));
}

absl::StatusOr<MountFacts> ReadMountFacts(int fd, const MountProbeOptions& options) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return ErrnoStatus(errno, "fstat");
  struct statfs file_system = {};
  if (fstatfs(fd, &file_system) != 0) return ErrnoStatus(errno, "fstatfs");
  MountFacts facts;
  facts.device = attributes.st_dev;
  facts.mount_id = UniqueMountIdOf(fd);
  // f_type is signed and may be sign-extended; the magic numbers have 32 bits.
  facts.magic = static_cast<uint32_t>(file_system.f_type);
  facts.overlay = facts.magic == kOverlayMagic;
  facts.fuse = facts.magic == kFuseMagic;
  facts.memory =
      facts.magic == kTmpfsMagic || facts.magic == kRamfsMagic || facts.magic == kHugetlbfsMagic;
  std::optional<uint64_t> mount_id;
  struct statx extended = {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &extended) == 0 &&
      (extended.stx_mask & STATX_MNT_ID) != 0) {
    mount_id = extended.stx_mnt_id;
  }
  const std::optional<MountLine> line =
      FindMountLine(options.mountinfo_path, mount_id, attributes.st_dev);
  facts.type = line.has_value() ? line->type : NameOfMagic(facts.magic);
  if (line.has_value()) facts.mount_point = line->mount_point;
  facts.read_ahead = ReadReadAheadSettings(attributes.st_dev, options.sysfs_root);
  facts.advice_bytes_max = AdviceBytesMax(facts.read_ahead);
  return facts;
}

MountProbe ProbeMount(int fd, MountFacts mount, const absl::StatusOr<FileMapping>& mapping,
                      const MountProbeOptions& options) {
  return Prober(fd, std::move(mount), mapping, options).Run();
}

absl::StatusOr<MountProbe> ProbeFile(int fd, const MountProbeOptions& options) {
  ASSIGN_OR_RETURN(MountFacts mount, ReadMountFacts(fd, options));
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return ErrnoStatus(errno, "fstat");
  if (options.active && attributes.st_size > 0) RETURN_IF_ERROR(CheckReadable(fd, 0));
  const absl::StatusOr<FileMapping> mapping =
      FileMapping::MapReadOnly(fd, static_cast<uint64_t>(attributes.st_size));
  return ProbeMount(fd, std::move(mount), mapping, options);
}

}  // namespace forestage
