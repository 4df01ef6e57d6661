#include "daemon/session/lendable_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

namespace forestage {
namespace {

constexpr uint64_t kMountRestrictions = ST_RDONLY | ST_NOEXEC | ST_NOSUID | ST_NODEV;

std::string HandleOf(int fd) {
  alignas(file_handle) char buffer[sizeof(file_handle) + MAX_HANDLE_SZ] = {};
  auto* handle = reinterpret_cast<file_handle*>(buffer);
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (name_to_handle_at(fd, "", handle, &mount, AT_EMPTY_PATH) != 0) return "";
  return std::string(reinterpret_cast<const char*>(handle->f_handle), handle->handle_bytes);
}

std::optional<LendableFile> LookAtFile(int fd, const struct stat& attributes, uint32_t magic) {
  if (!S_ISREG(attributes.st_mode)) return std::nullopt;
  struct statfs file_system = {};
  if (fstatfs(fd, &file_system) != 0 || static_cast<uint32_t>(file_system.f_type) != magic) {
    return std::nullopt;
  }
  return LendableFile{
      .name = {.device = attributes.st_dev, .inode = attributes.st_ino, .handle = HandleOf(fd)},
      .mount_restrictions = static_cast<uint64_t>(file_system.f_flags) & kMountRestrictions};
}

bool ModeLetsRead(const struct stat& attributes, const FileReader& reader) {
  if (attributes.st_uid == reader.uid) return (attributes.st_mode & S_IRUSR) != 0;
  const bool in_group = attributes.st_gid == reader.gid ||
                        std::find(reader.groups.begin(), reader.groups.end(), attributes.st_gid) !=
                            reader.groups.end();
  return (attributes.st_mode & (in_group ? S_IRGRP : S_IROTH)) != 0;
}

}  // namespace

std::optional<LendableFile> LookAtNamedFile(int fd, const FileReader& reader, uint32_t magic) {
  const int flags = fcntl(fd, F_GETFL);
  struct stat attributes = {};
  if (flags < 0 || (flags & O_PATH) == 0 || fstat(fd, &attributes) != 0 ||
      !ModeLetsRead(attributes, reader)) {
    return std::nullopt;
  }
  return LookAtFile(fd, attributes, magic);
}

std::optional<LendableFile> LookAtOpenFile(int fd, uint32_t magic) {
  const int flags = fcntl(fd, F_GETFL);
  struct stat attributes = {};
  if (flags < 0 || (flags & (O_PATH | O_DIRECT)) != 0 || (flags & O_ACCMODE) != O_RDONLY ||
      fstat(fd, &attributes) != 0) {
    return std::nullopt;
  }
  return LookAtFile(fd, attributes, magic);
}

}  // namespace forestage
