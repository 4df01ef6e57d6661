// A staging board as a client reads it, made of any bytes, and changed while it is read: no crash,
// no wait beyond a deadline, no state that means nothing.
//
// The first byte says what: bit 0: the rest are changes to a sound board (two bytes of place, one
// of value), else the board itself; bit 1: it can shrink, which must be refused; bit 2: each change
// comes after the client has mapped the board.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include <sys/mman.h>

#include "common/check.h"
#include "common/file_mapping.h"
#include "common/staging_board.h"

namespace forestage {
namespace {

constexpr uint64_t kExtents = 5;

std::vector<uint8_t> SoundBoard() {
  const auto board =
      StagingBoard::Create({.extent_count = kExtents, .extent_bytes = 4096, .generation = 7});
  CHECK(board.ok());
  std::vector<uint8_t> bytes(kBoardHeaderBytes + kExtents);
  CHECK(pread((*board)->fd(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

void Change(absl::Span<uint8_t> board, absl::Span<const uint8_t> changes) {
  for (; changes.size() >= 3; changes.remove_prefix(3)) {
    board[(size_t{changes[0]} << 8 | changes[1]) % board.size()] = changes[2];
  }
}

UniqueFd MakeBoard(const std::vector<uint8_t>& bytes, bool can_shrink) {
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  CHECK(fcntl(fd.get(), F_ADD_SEALS, can_shrink ? F_SEAL_GROW : F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

void Use(const StagingBoardView& view, size_t board_bytes) {
  const uint64_t extent_count = view.extent_count();
  CHECK(extent_count == board_bytes - kBoardHeaderBytes);
  for (uint64_t index = 0; index < extent_count; ++index) {
    CHECK(static_cast<uint8_t>(view.state(index)) <= kExtentStateMax);
  }
  CHECK(view.state(extent_count) == ExtentState::kFailed);
  CHECK(view.state(UINT64_MAX) == ExtentState::kFailed);
  view.daemon_gone();
  view.WaitFor(0, absl::InfinitePast());
  view.WaitFor(extent_count, absl::InfiniteFuture());
}

}  // namespace
}  // namespace forestage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forestage;  // NOLINT: a fuzz target is a program of its own
  if (size == 0) return -1;
  const bool changed = (data[0] & 1) != 0;
  const bool can_shrink = (data[0] & 2) != 0;
  const bool later = (data[0] & 4) != 0;
  const absl::Span<const uint8_t> rest(data + 1, size - 1);
  std::vector<uint8_t> bytes =
      changed ? SoundBoard() : std::vector<uint8_t>(rest.begin(), rest.end());
  if (changed && !later) Change(absl::MakeSpan(bytes), rest);
  const UniqueFd fd = MakeBoard(bytes, can_shrink);
  const absl::StatusOr<std::unique_ptr<StagingBoardView>> view = StagingBoardView::Map(fd);
  if (can_shrink) CHECK(!view.ok());
  if (!view.ok()) return 0;
  Use(**view, bytes.size());
  if (changed && later) {
    const absl::StatusOr<FileMapping> writable = FileMapping::MapReadWrite(fd.get(), bytes.size());
    CHECK(writable.ok());
    auto* begin = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(writable->bytes().data()));
    Change(absl::MakeSpan(begin, bytes.size()), rest);
    Use(**view, bytes.size());
  }
  return 0;
}
