// Anonymous memory files that are handed to other processes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/unique_fd.h"

namespace forestage {

// A memfd with these bytes that nobody can change any more (sealed against write, grow, shrink and
// further seals). `name` is a label in /proc.
absl::StatusOr<UniqueFd> MakeSealedMemfd(const std::string& name,
                                         absl::Span<const std::byte> bytes);

// A memfd of `size` zero bytes that cannot change its size. Map it for writing, then call
// SealFutureWrites so that everybody else can only read.
absl::StatusOr<UniqueFd> MakeFixedSizeMemfd(const std::string& name, uint64_t size);
absl::Status SealFutureWrites(int fd);

// FAILED_PRECONDITION unless `fd` is a memfd (or a file like one) that can neither shrink (a
// mapping of it cannot raise SIGBUS) nor, with `unwritable`, change its contents.
absl::Status CheckSealed(int fd, bool unwritable);

}  // namespace forestage
