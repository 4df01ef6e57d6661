#include "client/src/checkpoint_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "checkpoint/safetensors_header.h"
#include "common/descriptor_limit.h"
#include "common/errno_status.h"
#include "common/error_list.h"
#include "common/file_open.h"
#include "common/file_time.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

// Descriptors that the process may need beside its shards.
constexpr uint64_t kSpareDescriptors = 64;

absl::Status OpenError(const std::string& path) {
  return ErrnoStatus(errno, absl::StrCat("open ", LineText(path)));
}

// Its size and time are the shard's from now on.
absl::Status CheckRegular(OpenShard& shard, int fd) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0)
    return ErrnoStatus(errno, absl::StrCat("fstat ", LineText(shard.path)));
  if (!S_ISREG(attributes.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(LineText(shard.path), ": not a regular file"));
  }
  shard.bytes = static_cast<uint64_t>(attributes.st_size);
  shard.mtime_ns = NanosecondsOf(attributes.st_mtim);
  return absl::OkStatus();
}

// Finds the file by its path and asks for its attributes, but does not open it.
absl::Status NameOne(OpenShard& shard) {
  UniqueFd fd = OpenWithFlags(shard.path, O_PATH);
  if (!fd.valid()) return OpenError(shard.path);
  RETURN_IF_ERROR(CheckRegular(shard, fd.get()));
  shard.fd = std::move(fd);
  shard.named_only = true;
  return absl::OkStatus();
}

// `fd` is the shard's from now on.
absl::Status UseOpenFile(OpenShard& shard, UniqueFd fd) {
  RETURN_IF_ERROR(CheckRegular(shard, fd.get()));
  absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(fd.get(), shard.bytes);
  if (mapping.ok()) {
    shard.mapping = *std::move(mapping);
    shard.mapped = true;
  } else {
    shard.mapping_error = mapping.status();
  }
  shard.fd = std::move(fd);
  shard.named_only = false;
  return absl::OkStatus();
}

absl::Status OpenOne(OpenShard& shard) {
  UniqueFd fd = OpenForReading(shard.path);
  if (!fd.valid()) return OpenError(shard.path);
  // The daemon shares this open file description.
  fcntl(fd.get(), F_SETFL, 0);
  return UseOpenFile(shard, std::move(fd));
}

bool IsOnFileSystem(int fd, uint32_t magic) {
  struct statfs file_system = {};
  return fstatfs(fd, &file_system) == 0 && static_cast<uint32_t>(file_system.f_type) == magic;
}

// Whether a descriptor that somebody lent is of the file that `named` names, and nothing but an
// open for reading. Whoever lends need not be honest.
bool IsOpenFileOf(int named, int lent) {
  const int flags = fcntl(lent, F_GETFL);
  struct stat named_attributes = {};
  struct stat lent_attributes = {};
  return flags >= 0 && (flags & O_ACCMODE) == O_RDONLY && (flags & (O_PATH | O_DIRECT)) == 0 &&
         fstat(named, &named_attributes) == 0 && fstat(lent, &lent_attributes) == 0 &&
         named_attributes.st_dev == lent_attributes.st_dev &&
         named_attributes.st_ino == lent_attributes.st_ino;
}

bool OutOfDescriptors(absl::Span<const absl::Status> statuses) {
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const absl::Status& status) { return ErrnoOf(status) == EMFILE; });
}

std::string DescriptorLimitText(const std::string& directory, size_t shard_count) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat(
      LineText(directory), ": cannot open ", shard_count,
      " shards at once, since this process may open ", limit.rlim_cur, " files (hard limit ",
      limit.rlim_max,
      "); raise it with `ulimit -Hn`, LimitNOFILE= or the container's nofile limit");
}

// What is wrong with the shards: those that cannot be opened, the headers of the others, and the
// names in those that are sound, so that a second fault is not met after the first is mended.
// Requires: one could not be opened.
absl::Status AllErrors(const FileSelection& selection, absl::Span<const OpenShard> shards,
                       absl::Span<const absl::Status> statuses) {
  std::vector<ShardReading> readings(shards.size());
  ParallelFor(shards.size(), kHeaderThreadsMax, [&](size_t index) {
    if (!statuses[index].ok()) {
      readings[index] = statuses[index];
    } else if (!shards[index].named_only) {
      readings[index] = ReadOpenShard(shards[index]);
    }
  });
  // Nothing is known of the others, nor of those that had no more room among the descriptors.
  for (size_t i = shards.size(); i-- > 0;) {
    if (ErrnoOf(statuses[i]) == EMFILE || (statuses[i].ok() && shards[i].named_only)) {
      readings.erase(readings.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  std::vector<absl::Status> faults;
  if (OutOfDescriptors(statuses)) {
    // Told once, not for each shard.
    faults.push_back(
        absl::ResourceExhaustedError(DescriptorLimitText(selection.directory, shards.size())));
  }
  for (absl::Status& fault : FaultsOf(selection, std::move(readings))) {
    faults.push_back(std::move(fault));
  }
  return JoinErrors(faults);
}

}  // namespace

ShardReading ReadOpenShard(const OpenShard& shard) {
  CatalogShard read;
  read.name = shard.name;
  read.mtime_ns = shard.mtime_ns;
  ASSIGN_OR_RETURN(read.header, ReadHeader(shard.fd.get(), shard.path));
  if (read.header.file_bytes != shard.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(LineText(shard.path), ": changed from ",
                                                   shard.bytes, " to ", read.header.file_bytes,
                                                   " bytes while it was opened; load again "
                                                   "once nothing writes to it"));
  }
  return read;
}

CheckpointFiles::CheckpointFiles(FileSelection selection)
    : selection_(std::move(selection)), shards_(selection_.shards.size()) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = selection_.shards[i].name;
    shards_[i].path = selection_.shards[i].path;
  }
}

absl::StatusOr<std::shared_ptr<CheckpointFiles>> CheckpointFiles::Open(
    const std::string& directory, const SelectionOptions& options,
    std::optional<uint32_t> named_file_system) {
  ASSIGN_OR_RETURN(FileSelection selection, SelectFiles(directory, options));
  std::shared_ptr<CheckpointFiles> files(new CheckpointFiles(std::move(selection)));
  std::vector<OpenShard>& shards = files->shards_;
  // One file tells for all: where another one lies elsewhere, it is only opened a little later.
  const bool names = named_file_system.has_value() && !shards.empty() &&
                     NameOne(shards.front()).ok() &&
                     IsOnFileSystem(shards.front().fd.get(), *named_file_system);
  RETURN_IF_ERROR(files->ForEachShard([&](size_t index) {
    OpenShard& shard = shards[index];
    if (shard.fd.valid() && shard.named_only == names) return absl::OkStatus();
    return names ? NameOne(shard) : OpenOne(shard);
  }));
  return files;
}

bool CheckpointFiles::incomplete() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const OpenShard& shard) { return shard.named_only; });
}

absl::Status CheckpointFiles::OpenRest(std::vector<UniqueFd> lent) {
  lent.resize(shards_.size());
  return ForEachShard([&](size_t index) {
    OpenShard& shard = shards_[index];
    if (!shard.named_only) return absl::OkStatus();
    if (lent[index].valid() && IsOpenFileOf(shard.fd.get(), lent[index].get())) {
      return UseOpenFile(shard, std::move(lent[index]));
    }
    return OpenOne(shard);
  });
}

absl::Status CheckpointFiles::ForEachShard(const std::function<absl::Status(size_t)>& open) {
  std::vector<absl::Status> statuses(shards_.size());
  const auto open_all = [&] {
    ParallelFor(shards_.size(), kHeaderThreadsMax,
                [&](size_t index) { statuses[index] = open(index); });
  };
  open_all();
  if (OutOfDescriptors(statuses)) {
    // While a shard is opened its name is kept.
    RaiseDescriptorLimit(2 * shards_.size() + kSpareDescriptors);
    open_all();
  }
  const auto is_ok = [](const absl::Status& status) { return status.ok(); };
  if (std::all_of(statuses.begin(), statuses.end(), is_ok)) return absl::OkStatus();
  return AllErrors(selection_, shards_, statuses);
}

absl::Status CheckpointFiles::mapping_error() const {
  for (const OpenShard& shard : shards_) {
    if (!shard.mapped) return shard.mapping_error;
  }
  return absl::OkStatus();
}

std::vector<uint64_t> CheckpointFiles::shard_bytes() const {
  std::vector<uint64_t> bytes;
  bytes.reserve(shards_.size());
  for (const OpenShard& shard : shards_) bytes.push_back(shard.bytes);
  return bytes;
}

}  // namespace forestage
