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

#include "common/descriptor_limit.h"
#include "common/errno_status.h"
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
  int fd = -1;
  do {
    fd = open(selected.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
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
  shard.mtime_ns =
      stat_buffer.st_mtim.tv_sec * int64_t{1'000'000'000} + stat_buffer.st_mtim.tv_nsec;
  absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(fd, shard.bytes);
  if (mapping.ok()) {
    shard.mapping = *std::move(mapping);
    shard.mapped = true;
  }
  return absl::OkStatus();
}

bool OutOfDescriptors(absl::Span<const absl::Status> statuses) {
  return std::any_of(statuses.begin(), statuses.end(),
                     [](const absl::Status& status) { return ErrnoOf(status) == EMFILE; });
}

absl::Status DescriptorLimitError(const std::string& directory, size_t shard_count) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      directory, ": cannot open ", shard_count, " shards at once, since this process may open ",
      limit.rlim_cur, " files (hard limit ", limit.rlim_max,
      "); raise it with `ulimit -Hn`, LimitNOFILE= or the container's nofile limit"));
}

absl::Status AllErrors(absl::Span<const absl::Status> statuses) {
  std::vector<absl::string_view> messages;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (messages.empty()) code = status.code();
    messages.push_back(status.message());
  }
  if (messages.empty()) return absl::OkStatus();
  return absl::Status(code, absl::StrJoin(messages, "\n"));
}

}  // namespace

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
  if (OutOfDescriptors(statuses)) return DescriptorLimitError(directory, count);
  RETURN_IF_ERROR(AllErrors(statuses));
  return std::shared_ptr<const CheckpointFiles>(
      new CheckpointFiles(std::move(selection), std::move(shards)));
}

std::vector<uint64_t> CheckpointFiles::shard_bytes() const {
  std::vector<uint64_t> bytes;
  bytes.reserve(shards_.size());
  for (const OpenShard& shard : shards_) bytes.push_back(shard.bytes);
  return bytes;
}

}  // namespace forestage
