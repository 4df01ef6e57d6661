// A tensor or a rectangular part of one, read when it is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace forestage {

// Elements [start, stop) of one dimension.
struct Range {
  uint64_t start = 0;
  uint64_t stop = 0;
};

// Bytes of a mapped file, read-only. Keeps the mapping alive, also after the session ended and the
// daemon died. The bytes are aligned as they are in the file, which may be not at all. If somebody
// truncates the file after this was handed out, touching it raises SIGBUS: where that may happen,
// use Slice::CopyTo.
class SliceView {
 public:
  SliceView(std::shared_ptr<const void> owner, absl::Span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  absl::Span<const std::byte> bytes_;
};

// Costs nothing until it is read. Copyable; thread-safe. Reading is an error (FAILED_PRECONDITION)
// after its session was closed and in a forked child.
//
// Reading waits until the daemon has staged the bytes, or reads them itself where it does not.
// Errors of a read name file and offset:
//   DEADLINE_EXCEEDED    `deadline` has passed; asking again is fine. A read that storage does not
//                        answer is left behind in a thread, so that this comes half a second after
//                        the deadline at the latest, but where files cannot be mapped: there one
//                        read that has begun is waited for.
//   UNAVAILABLE          the file cannot be read (EIO, ESTALE); see the message
//   OUT_OF_RANGE         the file is shorter than it was at the start
//   FAILED_PRECONDITION  the file was written to since it was opened, so that bytes of two versions
//                        could meet; load again
class Slice {
 public:
  class State;  // of this library
  explicit Slice(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  // In elements, same rank as the tensor.
  const std::vector<uint64_t>& shape() const;
  // Of the packed slice, C order.
  uint64_t bytes() const;
  // Consecutive in the file, so that View() works.
  bool contiguous() const;
  // File-order index of its tensor in the catalog.
  size_t tensor_index() const;

  // The bytes in place, without a copy; every page of them is in memory when this returns.
  // FAILED_PRECONDITION when not contiguous().
  absl::StatusOr<SliceView> View(absl::Time deadline = absl::InfiniteFuture()) const;
  // Copies the packed slice. Never raises a signal, whatever happens to the file. Asks for huge
  // pages (MADV_HUGEPAGE) in the destination when it is large and was never touched; memory that is
  // reserved for many slices does best to ask for them itself, as a whole.
  // Requires: destination.size() == bytes().
  absl::Status CopyTo(absl::Span<std::byte> destination,
                      absl::Time deadline = absl::InfiniteFuture()) const;

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace forestage
