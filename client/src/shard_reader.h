// How this process itself reads a shard: into its page tables, or into a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/src/checkpoint_files.h"

namespace forestage {

// Reads [offset, offset + destination.size()) with pread, going on after short reads. OUT_OF_RANGE:
// the file ends before; otherwise the system's error. Both name file and offset. Blocks on storage.
absl::Status ReadExactly(const OpenShard& shard, uint64_t offset,
                         absl::Span<std::byte> destination);

// Whether the file is still what was opened: bytes that were read before a look are good when it
// says so, since a file that is written to, or is cut inside its last page, gives other bytes or
// zeros without an error. OUT_OF_RANGE: it has fewer than `end` bytes; FAILED_PRECONDITION: it was
// changed (size or mtime). A file that was deleted or replaced by another is unchanged.
absl::Status CheckUnchanged(const OpenShard& shard, uint64_t end);

// The same for bytes that were all read and not looked at in a mapping: by mtime alone, since after
// a short answer of a FUSE server the kernel takes the file for shorter than it is.
absl::Status CheckNotWritten(const OpenShard& shard);

// Brings [begin, end) of the shard's mapping into this process's page tables. Blocks on storage.
// Errors as ReadExactly's, never a signal. FAILED_PRECONDITION: this kernel or file system cannot
// do that although the bytes are readable; read them with ReadExactly.
// Requires: shard.mapped, begin <= end <= shard.bytes.
absl::Status PopulateRange(const OpenShard& shard, uint64_t begin, uint64_t end);

// Runs of equal length with ascending file offsets, read into consecutive places of `destination`:
// long runs straight, dense short ones through a bounce buffer of at most kBounceBytesMax.
// Requires: destination.size() == offsets.size() * run_bytes.
inline constexpr uint64_t kBounceBytesMax = 1024 * 1024;
absl::Status ReadRuns(const OpenShard& shard, absl::Span<const uint64_t> offsets,
                      uint64_t run_bytes, absl::Span<std::byte> destination);

// Asks the kernel to read [begin, end) soon, unless it says that all of it is in memory. Only a
// hint: whoever reads afterwards meets the error. May block while the storage is busy.
// Requires: begin <= end.
void AdviseRange(const OpenShard& shard, uint64_t begin, uint64_t end);

}  // namespace forestage
