#include "client/src/checkpoint_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint/safetensors_header.h"
#include "common/descriptor_limit.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

// Descriptors that the process may need beside its shards.
constexpr uint64_t kSpareDescriptors = 64;

absl::Status OpenOne(const SelectedShard& selected, OpenShard& shard) {
  shard.name = selected.name;
  shard.path = selected.path;
  // O_NONBLOCK so that a FIFO of this name cannot hang us.
  Interruptions interruptions;
  int fd = -1;
  do {
    fd = open(selected.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (fd < 0 && interruptions.MayRetry(errno));
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("open ", selected.path));
  shard.fd.Reset(fd);
  struct stat stat_buffer = {};
  if (fstat(fd, &stat_buffer) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fstat ", selected.path));
  }
  if (!S_ISREG(stat_buffer.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(selected.path, ": not a regular file"));
  }
  // The daemon shares this open file description.
  fcntl(fd, F_SETFL, 0);
  shard.bytes = static_cast<uint64_t>(stat_buffer.st_size);
  shard.mtime_ns = MtimeNs(stat_buffer);
  absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(fd, shard.bytes);
  if (mapping.ok()) {
    shard.mapping = *std::move(mapping);
    shard.mapped = true;
  } else {
    shard.mapping_error = mapping.status();
  }
  return absl::OkStatus();
}

bool OutOfDescriptors(absl::Span<const absl::Status> statuses) {
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const absl::Status& status) { return ErrnoOf(status) == EMFILE; });
}

std::string DescriptorLimitText(const std::string& directory, size_t shard_count) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::StrCat(
      directory, ": cannot open ", shard_count, " shards at once, since this process may open ",
      limit.rlim_cur, " files (hard limit ", limit.rlim_max,
      "); raise it with `ulimit -Hn`, LimitNOFILE= or the container's nofile limit");
}

// What is wrong with the shards: those that cannot be opened, and the headers of the others, so
// that a second fault is not met after the first is mended. Requires: one could not be opened.
absl::Status AllErrors(const std::string& directory, absl::Span<const OpenShard> shards,
                       std::vector<absl::Status> statuses) {
  std::vector<std::string> messages;
  absl::Status first;
  if (OutOfDescriptors(statuses)) {
    first = absl::ResourceExhaustedError(DescriptorLimitText(directory, shards.size()));
    messages.emplace_back(first.message());
  }
  ParallelFor(shards.size(), kHeaderThreadsMax, [&](size_t index) {
    if (!statuses[index].ok()) return;
    // Shards that had no more room among the descriptors are not there to be looked at.
    statuses[index] = ReadHeader(shards[index].fd.get(), shards[index].path).status();
  });
  for (const absl::Status& status : statuses) {
    if (status.ok() || ErrnoOf(status) == EMFILE) continue;
    if (first.ok()) first = status;
    messages.emplace_back(status.message());
  }
  // One error keeps its payloads (errno, header rule).
  if (messages.size() == 1) return first;
  return absl::Status(first.code(), absl::StrJoin(messages, "\n"));
}

}  // namespace

int64_t MtimeNs(const struct stat& status) {
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

CheckpointFiles::CheckpointFiles(FileSelection selection, std::vector<OpenShard> shards)
    : selection_(std::move(selection)), shards_(std::move(shards)) {}

absl::StatusOr<std::shared_ptr<const CheckpointFiles>> CheckpointFiles::Open(
    const std::string& directory, const SelectionOptions& options) {
  ASSIGN_OR_RETURN(FileSelection selection, SelectFiles(directory, options));
  const size_t count = selection.shards.size();
  std::vector<OpenShard> shards(count);
  std::vector<absl::Status> statuses(count);
  const auto open_all = [&] {
    ParallelFor(count, kHeaderThreadsMax, [&](size_t index) {
      if (shards[index].fd.valid()) return;
      statuses[index] = OpenOne(selection.shards[index], shards[index]);
    });
  };
  open_all();
  if (OutOfDescriptors(statuses)) {
    RaiseDescriptorLimit(count + kSpareDescriptors);
    open_all();
  }
  const auto is_ok = [](const absl::Status& status) { return status.ok(); };
  if (!std::all_of(statuses.begin(), statuses.end(), is_ok)) {
    return AllErrors(directory, shards, std::move(statuses));
  }
  return std::shared_ptr<const CheckpointFiles>(
      new CheckpointFiles(std::move(selection), std::move(shards)));
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
