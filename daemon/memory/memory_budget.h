// How much memory the page cache may still take on this node, read from the kernel each time.
//
// The page cache is charged to the cgroup of whoever brings a page in, and what the daemon reads is
// charged to the daemon's. So three kinds of bounds count: what the node has (MemAvailable), every
// cgroup from the daemon's own up to the root, and what the operator allows (memory-limit).
// docs/memory.md explains it to operators.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "daemon/memory/cgroup_chain.h"
#include "daemon/memory/memory_headroom.h"
#include "daemon/memory/memory_text.h"

namespace forestage {

enum class MemoryBoundKind { kNode, kCgroup, kSetting };
// "node", "cgroup", "setting".
absl::string_view MemoryBoundKindName(MemoryBoundKind kind);

struct MemoryBound {
  MemoryBoundKind kind = MemoryBoundKind::kNode;
  // For people: "MemTotal of this node", "memory.max of cgroup /sys/fs/cgroup/x".
  std::string name;
  uint64_t limit_bytes = 0;
  // In use, without file pages that the kernel can take back.
  uint64_t used_bytes = 0;
  uint64_t headroom_bytes = 0;
  // No more file pages than this can be charged here; all file pages of the node for kNode.
  uint64_t file_bytes_max = kNoMemoryLimit;

  // limit - used - headroom, at least 0.
  uint64_t available_bytes() const;
};

struct MemoryReading {
  // Empty when nothing at all bounds the daemon, as far as it can see.
  std::vector<MemoryBound> bounds;
  // What could not be read and so bounds nothing; for people.
  std::vector<std::string> unknown;
};

// Thread-safe: constant.
class MemoryBudget {
 public:
  struct Options {
    // Before /proc, and before the mount points that it names. Tests have trees of their own.
    std::string root;
    MemoryHeadroom headroom;
    // Of all checkpoints together; kNoMemoryLimit: none. No headroom is taken from it.
    uint64_t limit_bytes = kNoMemoryLimit;
  };
  explicit MemoryBudget(Options options);

  // Reads it anew: some small files of /proc and of cgroups, none of storage. What cannot be read
  // is told, and never an error.
  MemoryReading Read() const;
  const MemoryHeadroom& headroom() const { return options_.headroom; }

 private:
  void AddNode(MemoryReading& reading) const;
  void AddCgroups(MemoryReading& reading) const;
  void AddChain(const CgroupMembership& membership, const std::vector<CgroupMount>& mounts,
                MemoryReading& reading) const;
  void AddV1(const CgroupChain& chain, MemoryReading& reading) const;
  void AddV2(const CgroupChain& chain, MemoryReading& reading) const;
  // kNoMemoryLimit where there is none, and where it is unknown, which is told.
  uint64_t ReadLimit(const std::string& directory, absl::string_view file,
                     MemoryReading& reading) const;
  void AddBound(CgroupVersion version, const std::string& directory, absl::string_view limit_name,
                uint64_t limit_bytes, MemoryReading& reading) const;
  absl::StatusOr<std::string> ReadText(const std::string& path) const;

  const Options options_;
};

}  // namespace forestage
