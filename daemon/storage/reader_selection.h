// Which way of reading this process uses: io_uring where it is allowed, else threads. Decided once,
// said once.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "daemon/config.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// Makes a reader for one lane. Thread-safe; does not block on storage.
using StorageReaderFactory = std::function<absl::StatusOr<std::unique_ptr<StorageReader>>()>;

struct ReaderSelection {
  // "io_uring" or "threads".
  std::string name;
  // Why, in one sentence; names cause and fix where io_uring was refused.
  std::string reason;
  StorageReaderFactory make_reader;
};

// kAuto tries io_uring by making a ring, and takes threads where that is refused (also later, for a
// single lane). kUring fails with the reason where io_uring is refused. Takes milliseconds.
absl::StatusOr<ReaderSelection> SelectReader(ReaderChoice choice);

}  // namespace forestage
