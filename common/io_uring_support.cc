#include "common/io_uring_support.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include <linux/io_uring.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

constexpr uint32_t kNeededFeatures = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
constexpr std::array<unsigned, 5> kNeededOperations = {IORING_OP_FADVISE, IORING_OP_MADVISE,
                                                       IORING_OP_READ, IORING_OP_POLL_ADD,
                                                       IORING_OP_ASYNC_CANCEL};
// As many as the field of an operation's number can name.
constexpr unsigned kOperationsMax = 256;

}  // namespace

absl::Status IoUringRefusedStatus(int error_number, absl::string_view call) {
  std::string hint;
  if (error_number == EPERM || error_number == EACCES) {
    hint =
        "; a seccomp profile or kernel.io_uring_disabled forbids it: allow io_uring_setup, "
        "io_uring_enter and io_uring_register in the container's seccomp profile, or set "
        "kernel.io_uring_disabled=0";
  } else if (error_number == ENOSYS) {
    hint =
        "; the kernel was built without io_uring, or a seccomp profile hides it: allow "
        "io_uring_setup, io_uring_enter and io_uring_register there";
  } else if (error_number == ENOMEM) {
    rlimit limit = {};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    hint = absl::StrCat(
        "; no memory for the ring: raise the limit of locked memory (LimitMEMLOCK=, "
        "now ",
        limit.rlim_cur, " bytes) or the memory limit of the daemon's cgroup");
  }
  return ErrnoStatus(error_number, absl::StrCat(kIoUringUnavailable, hint, ": ", call));
}

absl::Status CheckIoUringOperations(int ring_fd, uint32_t features) {
  if ((features & kNeededFeatures) != kNeededFeatures) {
    return absl::UnimplementedError(
        absl::StrCat(kIoUringUnavailable,
                     "; this kernel's lacks timeouts of waits: Linux 5.11 or later has them"));
  }
  alignas(io_uring_probe)
      std::array<std::byte, sizeof(io_uring_probe) + kOperationsMax * sizeof(io_uring_probe_op)>
          buffer = {};
  auto* probe = reinterpret_cast<io_uring_probe*>(buffer.data());
  if (syscall(SYS_io_uring_register, ring_fd, IORING_REGISTER_PROBE, probe, kOperationsMax) != 0) {
    return IoUringRefusedStatus(errno, "io_uring_register (probe)");
  }
  for (const unsigned operation : kNeededOperations) {
    if (operation > probe->last_op || (probe->ops[operation].flags & IO_URING_OP_SUPPORTED) == 0) {
      return absl::UnimplementedError(absl::StrCat(
          kIoUringUnavailable,
          "; this kernel's lacks an operation of FADVISE, MADVISE, READ, POLL_ADD, ASYNC_CANCEL: "
          "Linux 5.11 or later has them"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIoUring() {
  io_uring_params parameters = {};
  const UniqueFd ring(static_cast<int>(syscall(SYS_io_uring_setup, 1, &parameters)));
  if (!ring.valid()) return IoUringRefusedStatus(errno, "io_uring_setup");
  RETURN_IF_ERROR(CheckIoUringOperations(ring.get(), parameters.features));
  if (syscall(SYS_io_uring_enter, ring.get(), 0, 0, 0, nullptr, 0) < 0) {
    return IoUringRefusedStatus(errno, "io_uring_enter");
  }
  return absl::OkStatus();
}

}  // namespace forestage
