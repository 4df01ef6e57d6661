// A staging board as a client reads it, made of any bytes.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include <sys/mman.h>

#include "common/check.h"
#include "common/staging_board.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const forestage::UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(write(fd.get(), data, size) == static_cast<ssize_t>(size));
  CHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  const absl::StatusOr<std::unique_ptr<forestage::StagingBoardView>> view =
      forestage::StagingBoardView::Map(fd);
  if (!view.ok()) return 0;
  const uint64_t extent_count = (*view)->extent_count();
  CHECK(extent_count == size - forestage::kBoardHeaderBytes);
  for (uint64_t index = 0; index < extent_count; ++index) {
    CHECK(static_cast<uint8_t>((*view)->state(index)) <= forestage::kExtentStateMax);
  }
  CHECK((*view)->state(extent_count) == forestage::ExtentState::kFailed);
  (*view)->daemon_gone();
  (*view)->WaitFor(0, absl::InfinitePast());
  (*view)->WaitFor(extent_count, absl::InfiniteFuture());
  return 0;
}
