#include "common/memfd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include <sys/mman.h>

#include "common/errno_status.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

absl::StatusOr<UniqueFd> MakeMemfd(const std::string& name) {
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  return fd;
}

absl::Status AddSeals(int fd, int seals) {
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return ErrnoStatus(errno, "F_ADD_SEALS on a memfd");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> MakeSealedMemfd(const std::string& name,
                                         absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeMemfd(name));
  while (!bytes.empty()) {
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "write to a memfd");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  RETURN_IF_ERROR(AddSeals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL));
  return fd;
}

absl::StatusOr<UniqueFd> MakeFixedSizeMemfd(const std::string& name, uint64_t size) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeMemfd(name));
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoStatus(errno, "ftruncate of a memfd");
  }
  RETURN_IF_ERROR(AddSeals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW));
  return fd;
}

absl::Status SealFutureWrites(int fd) { return AddSeals(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL); }

absl::Status CheckSealed(int fd, bool unwritable) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    if (errno == EINVAL) return absl::FailedPreconditionError("not a file that can be sealed");
    return ErrnoStatus(errno, "F_GET_SEALS");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError("memfd is not sealed against shrinking");
  }
  if (unwritable && (seals & F_SEAL_WRITE) == 0) {
    return absl::FailedPreconditionError("memfd is not sealed against writing");
  }
  return absl::OkStatus();
}

}  // namespace forestage
