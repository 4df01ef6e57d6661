// Whether an open file of one process may be given to another, and which file it is: for file
// systems on which a second open drops what the page cache holds of the file (docs/storage.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace forestage {

// The inode as this kernel knows it.
struct FileName {
  uint64_t device = 0;
  uint64_t inode = 0;
  // The file system's handle of it (name_to_handle_at): tells apart what a careless server gives
  // one inode number. Empty where there is none.
  std::string handle = {};

  friend auto operator<=>(const FileName&, const FileName&) = default;
};

struct LendableFile {
  FileName name;
  // ST_RDONLY, ST_NOEXEC, ST_NOSUID and ST_NODEV of the mount through which it was reached. A
  // descriptor opens anew through its own mount (/proc/self/fd), so nobody gets one of a mount that
  // allows more than his own.
  uint64_t mount_restrictions = 0;
};

// Who would get it.
struct FileReader {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups = {};
};

// Both may block on the file system.

// Of a descriptor with which a peer shows that it reaches a file. nullopt when it may not borrow:
// it was not opened with O_PATH, is not a regular file on a file system of the type `magic`
// (statfs), or its mode does not let the reader read it by itself (whatever its capabilities).
std::optional<LendableFile> LookAtNamedFile(int fd, const FileReader& reader, uint32_t magic);
// Of a descriptor to be lent. nullopt when it is not open for reading only (O_RDONLY, without
// O_DIRECT), or not a regular file on such a file system.
std::optional<LendableFile> LookAtOpenFile(int fd, uint32_t magic);

}  // namespace forestage
