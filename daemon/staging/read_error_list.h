// The errors of one checkpoint's reads, as many as anybody wants to see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace forestage {

// Keeps kReadErrorsKept errors, and counts the others. A shard that fails in many places does not
// hide another one: where there is no room, the first error of a shard takes the place of the last
// one of a shard that has several. Not thread-safe.
class ReadErrorList {
 public:
  // Whether it was kept. What is kept already, word for word and of the same shard, is no further
  // error.
  bool Add(uint32_t shard_index, std::string message);
  bool empty() const { return kept_.empty(); }
  // Oldest first; the last one counts those that were not kept.
  std::vector<std::string> Messages() const;

 private:
  struct Error {
    uint32_t shard_index;
    std::string message;
  };

  std::vector<Error> kept_;
  size_t count_ = 0;
  // Of all errors.
  std::set<uint32_t> shards_;
};

}  // namespace forestage
