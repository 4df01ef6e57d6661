#include "client/src/shard_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/src/destination_memory.h"
#include <sys/stat.h>
#include <sys/syscall.h>

#include "common/cached_bytes.h"
#include "common/check.h"
#include "common/errno_status.h"
#include "common/file_change.h"
#include "common/file_time.h"
#include "common/interruptions.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

// The smallest read-ahead that mounts have by default; a longer advice may be cut silently.
constexpr uint64_t kAdvicePieceBytes = 128 * kKiB;
// A read into huge pages that the system has just cleared finds them in the processor's cache.
constexpr uint64_t kReadBytesMax = 512 * kKiB;
// From this length on a run is read straight into its place.
constexpr uint64_t kLongRunBytes = 64 * kKiB;
// Bytes between two runs that it is cheaper to read than to make another system call.
constexpr uint64_t kGapBytesMax = 16 * kKiB;

std::string Place(const OpenShard& shard, uint64_t offset) {
  return absl::StrCat(LineText(shard.path), " at offset ", offset);
}

absl::Status EndOfFile(const OpenShard& shard, uint64_t offset) {
  return absl::OutOfRangeError(absl::StrCat(Place(shard, offset), ": the file ends here; it had ",
                                            shard.bytes, " bytes when it was opened"));
}

// One pread of at least one byte.
absl::StatusOr<uint64_t> ReadSome(const OpenShard& shard, uint64_t offset,
                                  absl::Span<std::byte> destination) {
  Interruptions interruptions;
  while (true) {
    const ssize_t count =
        pread(shard.fd.get(), destination.data(), std::min(destination.size(), kReadBytesMax),
              static_cast<off_t>(offset));
    if (count > 0) return static_cast<uint64_t>(count);
    if (count == 0) return EndOfFile(shard, offset);
    if (interruptions.MayRetry(errno)) continue;
    return ErrnoStatus(errno, absl::StrCat("read ", Place(shard, offset)));
  }
}

// Finds the error behind a fault in [begin, end): OK when all of it can be read.
absl::Status FindReadError(const OpenShard& shard, uint64_t begin, uint64_t end) {
  std::vector<std::byte> scratch(std::min<uint64_t>(end - begin, kBounceBytesMax));
  for (uint64_t offset = begin; offset < end;) {
    const uint64_t bytes = std::min<uint64_t>(scratch.size(), end - offset);
    RETURN_IF_ERROR(ReadExactly(shard, offset, absl::MakeSpan(scratch).subspan(0, bytes)));
    offset += bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<struct stat> LookAgain(const OpenShard& shard) {
  struct stat now = {};
  if (fstat(shard.fd.get(), &now) != 0) {
    return ErrnoStatus(errno, absl::StrCat("fstat ", LineText(shard.path)));
  }
  return now;
}

absl::Status ChangedError(const OpenShard& shard, const struct stat& now) {
  return absl::FailedPreconditionError(FileChangedMessage(
      LineText(shard.path), "it was opened", {.bytes = shard.bytes, .mtime_ns = shard.mtime_ns},
      {.bytes = static_cast<uint64_t>(now.st_size), .mtime_ns = NanosecondsOf(now.st_mtim)},
      "load the checkpoint again once nothing writes to it"));
}

absl::Status CheckNotWritten(const OpenShard& shard, const struct stat& now) {
  return NanosecondsOf(now.st_mtim) == shard.mtime_ns ? absl::OkStatus() : ChangedError(shard, now);
}

}  // namespace

absl::Status ReadExactly(const OpenShard& shard, uint64_t offset,
                         absl::Span<std::byte> destination) {
  while (!destination.empty()) {
    GivePages(destination.subspan(0, kReadBytesMax));
    ASSIGN_OR_RETURN(const uint64_t count, ReadSome(shard, offset, destination));
    offset += count;
    destination.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status CheckUnchanged(const OpenShard& shard, uint64_t end) {
  ASSIGN_OR_RETURN(const struct stat now, LookAgain(shard));
  const uint64_t bytes = static_cast<uint64_t>(now.st_size);
  if (bytes < end) return EndOfFile(shard, bytes);
  return bytes == shard.bytes ? CheckNotWritten(shard, now) : ChangedError(shard, now);
}

absl::Status CheckNotWritten(const OpenShard& shard) {
  ASSIGN_OR_RETURN(const struct stat now, LookAgain(shard));
  return CheckNotWritten(shard, now);
}

absl::Status PopulateRange(const OpenShard& shard, uint64_t begin, uint64_t end) {
  CHECK(shard.mapped);
  absl::Status status = shard.mapping.PopulateRead(begin, end);
  if (status.ok()) return status;
  RETURN_IF_ERROR(FindReadError(shard, begin, end));
  // All of it can be read: a passing error, or a kernel that cannot populate.
  status = shard.mapping.PopulateRead(begin, end);
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(Place(shard, begin), ": ", status.message(), "; the bytes are readable"));
}

absl::Status ReadRuns(const OpenShard& shard, absl::Span<const uint64_t> offsets,
                      uint64_t run_bytes, absl::Span<std::byte> destination) {
  CHECK(destination.size() == offsets.size() * run_bytes);
  std::vector<std::byte> bounce;
  for (size_t first = 0; first < offsets.size();) {
    // The longest group of close runs that fits the bounce buffer.
    size_t last = first + 1;
    while (run_bytes < kLongRunBytes && last < offsets.size() &&
           offsets[last] - (offsets[last - 1] + run_bytes) <= kGapBytesMax &&
           offsets[last] + run_bytes - offsets[first] <= kBounceBytesMax) {
      ++last;
    }
    if (last == first + 1) {
      RETURN_IF_ERROR(
          ReadExactly(shard, offsets[first], destination.subspan(first * run_bytes, run_bytes)));
    } else {
      const uint64_t span_bytes = offsets[last - 1] + run_bytes - offsets[first];
      bounce.resize(std::max<size_t>(bounce.size(), span_bytes));
      RETURN_IF_ERROR(
          ReadExactly(shard, offsets[first], absl::MakeSpan(bounce).subspan(0, span_bytes)));
      for (size_t run = first; run < last; ++run) {
        std::memcpy(&destination[run * run_bytes], &bounce[offsets[run] - offsets[first]],
                    run_bytes);
      }
    }
    first = last;
  }
  return absl::OkStatus();
}

void AdviseRange(const OpenShard& shard, uint64_t begin, uint64_t end) {
  // Advice looks at each page, which costs as much as to use them when they are there.
  if (AllCached(shard.fd.get(), begin, end)) return;
  for (uint64_t offset = begin; offset < end;) {
    const uint64_t next = std::min(end, AlignDown(offset, kAdvicePieceBytes) + kAdvicePieceBytes);
    posix_fadvise(shard.fd.get(), static_cast<off_t>(offset), static_cast<off_t>(next - offset),
                  POSIX_FADV_WILLNEED);
    offset = next;
  }
}

}  // namespace forestage
