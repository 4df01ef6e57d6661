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
#include "common/file_open.h"
#include "common/file_time.h"
#include "common/parallel_for.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// As many as hide the latency of a network file system and do not stall its server.
constexpr size_t kReadersMax = 16;

ShardReading ReadShard(const SelectedShard& shard) {
  const UniqueFd fd = OpenForReading(shard.path);
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat(QuotedPath(shard.path), ": open"));
  // Only a hint; a file system that does not know it reads a little more.
  (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
  struct stat attributes = {};
  if (fstat(fd.get(), &attributes) != 0) {
    return ErrnoStatus(errno, absl::StrCat(QuotedPath(shard.path), ": fstat"));
  }
  CatalogShard read;
  read.name = shard.name;
  read.mtime_ns = NanosecondsOf(attributes.st_mtim);
  ASSIGN_OR_RETURN(read.header, ReadHeader(fd.get(), shard.path));
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
