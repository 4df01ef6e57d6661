// How many bytes a second may be read of a mount, by the type of its file system.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// A constant value. The default limits nothing. A limit is one for each mount, not for all mounts
// of a type together.
class ReadRateLimits {
 public:
  static constexpr uint64_t kNone = 0;

  ReadRateLimits() = default;
  // Entries with a comma between: "2GiB" or "none" for all mounts that no other entry is for,
  // "nfs=500MiB" or "ext4=none" for those of a type. A type stands also for its kinds: "fuse" for
  // "fuse.sshfs", "nfs" for "nfs4". nullopt: anything else, a size of 0, a type given twice.
  static std::optional<ReadRateLimits> Parse(absl::string_view text);

  // Of a mount of this type, as /proc/self/mountinfo names it; kNone: it has none.
  uint64_t Of(absl::string_view type) const;
  // The smallest there is; kNone: there is none.
  uint64_t Smallest() const;
  // As Parse reads it.
  std::string ToString() const;

 private:
  uint64_t others_ = kNone;
  std::map<std::string, uint64_t> by_type_;
};

}  // namespace forestage
