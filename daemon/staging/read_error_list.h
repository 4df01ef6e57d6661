// The errors of one checkpoint's reads, as many as anybody wants to see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace forestage {

struct ReadError {
  uint32_t shard_index = 0;
  // Of the extent that could not be read.
  uint64_t offset = 0;
  // OUT_OF_RANGE: the file ends before; FAILED_PRECONDITION: it was changed. Either is true of all
  // of the file, whichever extent met it.
  absl::Status status;
};

// Keeps kReadErrorsKept errors, and counts the others. A shard that fails in many places does not
// hide another one: where there is no room, the first error of a shard takes the place of the last
// one of a shard that has several. Not thread-safe.
class ReadErrorList {
 public:
  // Whether it is told now. What is known already is no further error: the same words of a shard
  // again, and all that is true of a whole file but for the first; of ends of one file the error of
  // the lowest offset is told, which alone can know where the file ends.
  bool Add(const ReadError& error);
  bool empty() const { return kept_.empty(); }
  // Whether something that is true of all of this shard was added.
  bool TellsOfWholeFile(uint32_t shard_index) const { return whole_files_.contains(shard_index); }
  // Oldest first; the last one counts those that were not kept.
  std::vector<std::string> Messages() const;

 private:
  // Whether `error`, true of its whole file, is news where another one is known.
  bool ReplaceEndOfFile(const ReadError& error);
  // Whether there was room.
  bool Keep(const ReadError& error, bool first_of_shard);

  std::vector<ReadError> kept_;
  size_t count_ = 0;
  // Of all errors.
  std::set<uint32_t> shards_;
  std::set<uint32_t> whole_files_;
};

}  // namespace forestage
