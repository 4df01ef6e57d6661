#include "daemon/storage/shard_file.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "common/cached_bytes.h"
#include "common/check.h"
#include "common/errno_status.h"
#include "common/file_change.h"
#include "common/file_system_magic.h"
#include "common/file_time.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "daemon/storage/mount_table.h"

namespace forestage {
namespace {

// Looks at a file whose attributes change at each.
constexpr int kAttributeLooksMax = 4;

struct RefusedFileSystem {
  uint64_t magic;
  const char* name;
};
// File systems whose "files" are the kernel's own state: reading one may have effects, and none
// holds weights.
constexpr std::array<RefusedFileSystem, 16> kRefusedFileSystems = {{
    {0x9fa0, "proc"},
    {0x62656572, "sysfs"},
    {0x27e0eb, "cgroup"},
    {0x63677270, "cgroup2"},
    {0x64626720, "debugfs"},
    {0x74726163, "tracefs"},
    {0x1cd1, "devpts"},
    {0x73636673, "securityfs"},
    {0xf97cff8c, "selinuxfs"},
    {0x43415d53, "smackfs"},
    {0xcafe4a11, "bpf"},
    {0x6165676c, "pstore"},
    {0x62656570, "configfs"},
    {0xde5e81e4, "efivarfs"},
    {0x19800202, "mqueue"},
    {0x42494e4d, "binfmt_misc"},
}};

absl::Status CheckServedFileSystem(const std::string& name, uint64_t magic) {
  for (const RefusedFileSystem& refused : kRefusedFileSystems) {
    if (refused.magic == magic) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": files of ", refused.name, " are not served"));
    }
  }
  return absl::OkStatus();
}

struct CheckedDescriptor {
  int flags = 0;
  struct stat stat_buffer = {};
  uint64_t magic = 0;
};

absl::StatusOr<CheckedDescriptor> CheckDescriptor(const std::string& name, int fd) {
  CheckedDescriptor checked;
  checked.flags = fcntl(fd, F_GETFL);
  if (checked.flags < 0) return ErrnoStatus(errno, absl::StrCat("F_GETFL of ", name));
  if ((checked.flags & O_PATH) != 0 || (checked.flags & O_ACCMODE) == O_WRONLY) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the descriptor is not open for reading"));
  }
  if (fstat(fd, &checked.stat_buffer) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fstat of ", name));
  }
  if (!S_ISREG(checked.stat_buffer.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file"));
  }
  struct statfs file_system = {};
  if (fstatfs(fd, &file_system) != 0) return ErrnoStatus(errno, absl::StrCat("fstatfs of ", name));
  // f_type is signed and may be sign-extended; the magic numbers have 32 bits.
  checked.magic = static_cast<uint32_t>(file_system.f_type);
  RETURN_IF_ERROR(CheckServedFileSystem(name, checked.magic));
  return checked;
}

// A descriptor of our own on the same inode, else the received one.
UniqueFd Reopen(UniqueFd received, int received_flags, uint64_t magic,
                const CacheIdentity& identity) {
  if (magic == kFuseMagic && (received_flags & O_DIRECT) == 0) return received;
  UniqueFd own(open(absl::StrCat("/proc/self/fd/", received.get()).c_str(),
                    O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!own.valid()) return received;
  const absl::StatusOr<CacheIdentity> own_identity = CacheIdentityOf(own.get());
  if (!own_identity.ok() || own_identity->device != identity.device ||
      own_identity->inode != identity.inode) {
    return received;
  }
  // Its reads are of single pages and holes: the kernel shall not guess what comes next.
  (void)posix_fadvise(own.get(), 0, 0, POSIX_FADV_RANDOM);
  return own;
}

CacheIdentity IdentityOf(const struct stat& stat_buffer) {
  return {.device = stat_buffer.st_dev,
          .inode = stat_buffer.st_ino,
          .bytes = static_cast<uint64_t>(stat_buffer.st_size),
          .mtime_ns = NanosecondsOf(stat_buffer.st_mtim),
          .ctime_ns = NanosecondsOf(stat_buffer.st_ctim)};
}

absl::StatusOr<struct statx> StatWithoutServer(const std::string& name, int fd) {
  struct statx buffer = {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &buffer) != 0) {
    return ErrnoStatus(errno, absl::StrCat("statx of ", name));
  }
  return buffer;
}

FileAttributes AttributesOf(const struct statx& attributes, int fd) {
  // The path follows a rename, and ends in " (deleted)" when the name is gone; asks no server.
  char path[PATH_MAX] = {};
  const ssize_t length = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), path, sizeof(path));
  return {.links = attributes.stx_nlink,
          .mode = attributes.stx_mode,
          .uid = attributes.stx_uid,
          .gid = attributes.stx_gid,
          .path = length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string()};
}

}  // namespace

absl::StatusOr<CacheIdentity> CacheIdentityOf(int fd) {
  struct stat stat_buffer = {};
  if (fstat(fd, &stat_buffer) != 0) return ErrnoStatus(errno, "fstat");
  if (!S_ISREG(stat_buffer.st_mode)) return absl::InvalidArgumentError("not a regular file");
  return IdentityOf(stat_buffer);
}

absl::StatusOr<CacheIdentity> ShardFile::Check(const std::string& name, int fd) {
  ASSIGN_OR_RETURN(const CheckedDescriptor checked, CheckDescriptor(name, fd));
  return IdentityOf(checked.stat_buffer);
}

absl::StatusOr<std::unique_ptr<ShardFile>> ShardFile::Open(std::string name, UniqueFd received,
                                                           MountTable* mounts) {
  ASSIGN_OR_RETURN(const CheckedDescriptor checked, CheckDescriptor(name, received.get()));
  const CacheIdentity identity = IdentityOf(checked.stat_buffer);
  UniqueFd fd = Reopen(std::move(received), checked.flags, checked.magic, identity);
  // Whatever happened since the identity was taken explains nothing.
  ASSIGN_OR_RETURN(const struct statx attributes, StatWithoutServer(name, fd.get()));
  FileAttributes known = AttributesOf(attributes, fd.get());

  absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(fd.get(), identity.bytes);
  if (!mapping.ok() && ErrnoOf(mapping.status()) != ENODEV) {
    return ErrnoStatus(ErrnoOf(mapping.status()), absl::StrCat("mmap of ", name));
  }
  absl::StatusOr<MountFacts> facts =
      mounts != nullptr ? mounts->FactsOf(fd.get()) : ReadMountFacts(fd.get());
  // What cannot be found out of a mount is no reason not to serve a file of it.
  if (!facts.ok()) facts = MountFacts{.device = identity.device};
  MountProbe probe = ProbeMount(fd.get(), *std::move(facts), mapping);
  MountTable::Use use = mounts != nullptr ? mounts->OnFileOpened(probe) : nullptr;
  // Without honest residency nobody could tell what a fault brought in.
  if (probe.mincore.yes()) mapping->FaultInHugePages();
  return std::unique_ptr<ShardFile>(
      new ShardFile(std::move(name), std::move(fd), identity, std::move(known),
                    mapping.ok() ? *std::move(mapping) : FileMapping(), std::move(probe),
                    Mount::For(identity.device), std::move(use)));
}

ShardFile::ShardFile(std::string name, UniqueFd fd, CacheIdentity identity,
                     FileAttributes attributes, FileMapping mapping, MountProbe probe,
                     std::shared_ptr<Mount> mount, std::shared_ptr<const void> mount_use)
    : name_(std::move(name)),
      fd_(std::move(fd)),
      identity_(identity),
      mapping_(std::move(mapping)),
      probe_(std::move(probe)),
      mount_(std::move(mount)),
      mount_use_(std::move(mount_use)),
      explained_ctime_ns_(identity_.ctime_ns),
      attributes_(std::move(attributes)) {}

bool ShardFile::CtimeIsExplained() const {
  absl::MutexLock lock(&mutex_);
  // Again, since the path is asked for later than the rest: what happened between the two is to be
  // explained as well.
  for (int looks = 0; !ctime_unexplained_ && looks < kAttributeLooksMax; ++looks) {
    const absl::StatusOr<struct statx> now = StatWithoutServer(name_, fd_.get());
    if (!now.ok() || NanosecondsOf(now->stx_ctime) == explained_ctime_ns_) break;
    FileAttributes attributes = AttributesOf(*now, fd_.get());
    ctime_unexplained_ = attributes == attributes_;
    explained_ctime_ns_ = NanosecondsOf(now->stx_ctime);
    attributes_ = std::move(attributes);
  }
  return !ctime_unexplained_;
}

absl::Status ShardFile::CheckUnchanged() const {
  ASSIGN_OR_RETURN(const struct statx now, StatWithoutServer(name_, fd_.get()));
  const int64_t mtime_ns = NanosecondsOf(now.stx_mtime);
  const int64_t ctime_ns = NanosecondsOf(now.stx_ctime);
  if (now.stx_size == identity_.bytes && mtime_ns == identity_.mtime_ns &&
      (ctime_ns == identity_.ctime_ns || CtimeIsExplained())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(FileChangedMessage(
      name_, "it was opened",
      {.bytes = identity_.bytes, .mtime_ns = identity_.mtime_ns, .ctime_ns = identity_.ctime_ns},
      {.bytes = now.stx_size, .mtime_ns = mtime_ns, .ctime_ns = ctime_ns},
      "what was staged of it counts no longer: stage or load the checkpoint again once nothing "
      "changes it"));
}

absl::StatusOr<uint64_t> ShardFile::CurrentBytes() const {
  ASSIGN_OR_RETURN(const struct statx now, StatWithoutServer(name_, fd_.get()));
  return now.stx_size;
}

std::optional<std::vector<ByteRange>> ShardFile::MissingRanges(uint64_t offset,
                                                               uint64_t bytes) const {
  CHECK(offset % PageBytes() == 0 && offset <= identity_.bytes &&
        bytes <= identity_.bytes - offset);
  std::vector<ByteRange> missing;
  if (bytes == 0) return missing;
  if (!probe_.mincore.yes()) return std::nullopt;
  const uint64_t end = offset + bytes;
  std::vector<unsigned char> pages(DivideRoundingUp(bytes, PageBytes()));
  // The address is constant; mincore changes nothing.
  auto* address = const_cast<std::byte*>(mapping_.bytes().data()) + offset;
  const ByteRange mapped = MapCachedBlocks(offset, end);
  const int looked = mincore(address, bytes, pages.data());
  // Nobody's eviction of these pages shall find them mapped because they were looked at.
  if (mapped.bytes() > 0) madvise(address + (mapped.begin - offset), mapped.bytes(), MADV_DONTNEED);
  if (looked != 0) return std::nullopt;
  for (uint64_t i = 0; i < pages.size(); ++i) {
    if ((pages[i] & 1) != 0) continue;
    const uint64_t begin = offset + i * PageBytes();
    const uint64_t page_end = std::min(begin + PageBytes(), end);
    if (!missing.empty() && missing.back().end == begin) {
      missing.back().end = page_end;
    } else {
      missing.push_back({.begin = begin, .end = page_end});
    }
  }
  return missing;
}

ByteRange ShardFile::MapCachedBlocks(uint64_t begin, uint64_t end) const {
  const ByteRange none = {.begin = begin, .end = begin};
  const ByteRange blocks = {.begin = DivideRoundingUp(begin, kFaultBlockBytes) * kFaultBlockBytes,
                            .end = AlignDown(end, kFaultBlockBytes)};
  // Of one block alone to map it costs more than it saves, and who has read it has it mapped.
  if (blocks.begin + kFaultBlockBytes >= blocks.end || probe_.cachestat.no()) return none;
  if (!AllCached(fd_.get(), blocks.begin, blocks.end)) return none;
  auto* const file = const_cast<std::byte*>(mapping_.bytes().data());
  for (uint64_t block = blocks.begin; block < blocks.end; block += kFaultBlockBytes) {
    // A page that is up to date is mapped without a read; one that is still on its way would be
    // waited for.
    unsigned char page = 0;
    if (mincore(file + block, PageBytes(), &page) == 0 && (page & 1) != 0) {
      (void)mapping_.PopulateRead(block, block + PageBytes());
    }
  }
  return blocks;
}

void ShardFile::UnmapBlocks(uint64_t begin, uint64_t end) const {
  const uint64_t first = AlignDown(begin, kFaultBlockBytes);
  const uint64_t last = std::min(AlignUp(bytes(), PageBytes()), AlignUp(end, kFaultBlockBytes));
  if (mapping_.empty() || first >= last) return;
  (void)madvise(const_cast<std::byte*>(mapping_.bytes().data()) + first, last - first,
                MADV_DONTNEED);
}

std::optional<uint64_t> ShardFile::ResidentBytes(uint64_t offset, uint64_t bytes) const {
  const std::optional<std::vector<ByteRange>> missing = MissingRanges(offset, bytes);
  if (!missing.has_value()) return std::nullopt;
  uint64_t resident = bytes;
  for (const ByteRange& range : *missing) resident -= range.bytes();
  return resident;
}

bool ShardFile::LooksCached(uint64_t offset, uint64_t bytes) const {
  if (!probe_.mincore.yes() || probe_.cachestat.no() || mount_->read_failed()) return false;
  return ::forestage::LooksCached(fd_.get(), mapping_.bytes(), offset, offset + bytes);
}

uint64_t ShardFile::CachedBytes() const {
  // mincore looks at each page, cached or not: seconds for a large file with little in memory.
  if (!probe_.cachestat.no()) {
    const absl::StatusOr<uint64_t> cached = ::forestage::CachedBytes(fd_.get(), 0, identity_.bytes);
    if (cached.ok()) return std::min(*cached, identity_.bytes);
  }
  return ResidentBytes(0, identity_.bytes).value_or(0);
}

}  // namespace forestage
