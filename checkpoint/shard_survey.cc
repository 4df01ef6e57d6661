#include "checkpoint/shard_survey.h"

#include <fcntl.h>

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "checkpoint/safetensors_header.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/parallel_for.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

// As many as hide the latency of a network file system and do not stall its server.
constexpr size_t kSurveyThreadsMax = 16;

absl::Status Survey(const SelectedShard& shard) {
  // Not blocking, should it be a FIFO.
  Interruptions interruptions;
  int fd = -1;
  do {
    fd = open(shard.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (fd < 0 && interruptions.MayRetry(errno));
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(QuotedName(shard.name), ": open"));
  const UniqueFd owned(fd);
  return ReadHeader(fd, shard.name).status();
}

}  // namespace

void SurveyShards(absl::Span<const SelectedShard> shards, OffenderList* faults) {
  std::vector<absl::Status> statuses(shards.size());
  ParallelFor(shards.size(), kSurveyThreadsMax,
              [&](size_t index) { statuses[index] = Survey(shards[index]); });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) faults->Add(std::string(status.message()));
  }
}

}  // namespace forestage
