#include "common/mount_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include <sys/stat.h>
#include <sys/syscall.h>

namespace forestage {
namespace {

#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000
#endif
// The same number on every architecture.
#ifndef SYS_statmount
#define SYS_statmount 457
#endif

// struct mnt_id_req, in its first version.
struct MountIdRequest {
  uint32_t size = sizeof(MountIdRequest);
  uint32_t spare = 0;
  uint64_t mount_id = 0;
  // What to tell of the mount: nothing.
  uint64_t mask = 0;
};
static_assert(sizeof(MountIdRequest) == 24);

// struct statmount has 512 bytes before its strings.
constexpr size_t kAnswerBytes = 1024;

}  // namespace

std::optional<uint64_t> UniqueMountIdOf(int fd) {
  struct statx attributes = {};
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID_UNIQUE, &attributes) != 0 ||
      (attributes.stx_mask & STATX_MNT_ID_UNIQUE) == 0) {
    return std::nullopt;
  }
  return attributes.stx_mnt_id;
}

bool MountIsGone(uint64_t unique_mount_id) {
  const MountIdRequest request = {.mount_id = unique_mount_id};
  alignas(uint64_t) std::array<std::byte, kAnswerBytes> answer;
  return syscall(SYS_statmount, &request, answer.data(), answer.size(), 0) != 0 && errno == ENOENT;
}

}  // namespace forestage
