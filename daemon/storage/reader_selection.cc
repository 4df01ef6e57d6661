#include "daemon/storage/reader_selection.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"
#include "daemon/limits.h"
#include "daemon/storage/thread_pool_storage_reader.h"
#include "daemon/storage/uring_storage_reader.h"

namespace forestage {
namespace {

absl::StatusOr<std::unique_ptr<StorageReader>> MakeThreadReader() {
  ASSIGN_OR_RETURN(std::unique_ptr<ThreadPoolStorageReader> reader,
                   ThreadPoolStorageReader::Create(kReaderThreads));
  return reader;
}

absl::StatusOr<std::unique_ptr<StorageReader>> MakeUringReader() {
  ASSIGN_OR_RETURN(std::unique_ptr<UringStorageReader> reader, UringStorageReader::Create());
  return reader;
}

ReaderSelection Threads(std::string reason) {
  return {.name = "threads", .reason = std::move(reason), .make_reader = MakeThreadReader};
}

}  // namespace

absl::StatusOr<ReaderSelection> SelectReader(ReaderChoice choice) {
  if (choice == ReaderChoice::kThreads) return Threads("asked for by the configuration");
  const absl::Status tried = UringStorageReader::Create().status();
  if (choice == ReaderChoice::kUring) {
    RETURN_IF_ERROR(tried);
    return ReaderSelection{.name = "io_uring",
                           .reason = "asked for by the configuration",
                           .make_reader = &MakeUringReader};
  }
  if (!tried.ok()) return Threads(std::string(tried.message()));
  return ReaderSelection{.name = "io_uring",
                         .reason = "this kernel allows it and has every operation needed",
                         .make_reader = [] {
                           // A ring may still be refused later, for want of locked memory or
                           // descriptors.
                           absl::StatusOr<std::unique_ptr<StorageReader>> reader =
                               MakeUringReader();
                           return reader.ok() ? std::move(reader) : MakeThreadReader();
                         }};
}

}  // namespace forestage
