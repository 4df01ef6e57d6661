#include "checkpoint/shard_survey.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "checkpoint/offender_list.h"
#include "checkpoint/safetensors_header.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// As many as hide the latency of a network file system and do not stall its server.
constexpr size_t kReadersMax = 16;

ShardReading ReadShard(const SelectedShard& shard) {
  // Not blocking, should it be a FIFO.
  Interruptions interruptions;
  int fd = -1;
  do {
    fd = open(shard.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (fd < 0 && interruptions.MayRetry(errno));
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(QuotedPath(shard.path), ": open"));
  const UniqueFd owned(fd);
  // Only a hint; a file system that does not know it reads a little more.
  (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) {
    return ErrnoStatus(errno, absl::StrCat(QuotedPath(shard.path), ": fstat"));
  }
  CatalogShard read;
  read.name = shard.name;
  read.mtime_ns = int64_t{attributes.st_mtim.tv_sec} * 1'000'000'000 + attributes.st_mtim.tv_nsec;
  ASSIGN_OR_RETURN(read.header, ReadHeader(fd, shard.path));
  return read;
}

}  // namespace

std::vector<ShardReading> ReadShards(absl::Span<const SelectedShard> shards) {
  std::vector<ShardReading> readings(shards.size());
  ParallelFor(shards.size(), kReadersMax,
              [&](size_t index) { readings[index] = ReadShard(shards[index]); });
  return readings;
}

}  // namespace forestage
