// The interface to storage: brings pieces of open files into the page cache and verifies that they
// are there. Implementations: UringStorageReader, ThreadPoolStorageReader; FaultyStorageReader
// decorates one and fails on request. All pass storage_reader_conformance_test.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "daemon/storage/shard_file.h"

namespace forestage {

struct ReadRequest {
  // Outlives the request.
  const ShardFile* file = nullptr;
  // Within the file; offset is a multiple of the page size.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // Given back with the result.
  uint64_t tag = 0;
  // What to bring in of it: whole pages, disjoint, in order. Empty: all of it.
  std::vector<ByteRange> ranges = {};
  // What is wanted of the file near the request, now or later, as above: nothing else is read. It
  // covers `ranges`. Empty: `ranges`.
  std::vector<ByteRange> demanded = {};
};

struct ReadResult {
  uint64_t tag = 0;
  // OK: every page of the ranges was seen in the page cache and up to date, after the last read; or
  // nothing had to be read, since all of them looked cached (ShardFile::LooksCached).
  // Else the error of the read that failed, with file name and offset (UNAVAILABLE for EIO and
  // ESTALE, OUT_OF_RANGE when the file ends inside the range, CANCELLED after Cancel()).
  absl::Status status;
  // Bytes of pages that were not in the page cache when the request was begun, thus came from
  // storage. All of them where residency cannot be asked.
  uint64_t storage_bytes = 0;
  // All of [offset, offset + bytes) looked cached when the request was begun, not the ranges alone.
  bool all_cached = false;
};

// Owned by one lane and used from its thread only, except Wake() and Cancel().
class StorageReader {
 public:
  virtual ~StorageReader() = default;

  // "io_uring" or "threads".
  virtual absl::string_view name() const = 0;
  // How many requests may be in flight; Start() beyond it is a bug of the caller.
  virtual size_t in_flight_max() const = 0;
  virtual size_t in_flight() const = 0;

  // Begins a read. Never blocks on storage.
  virtual void Start(const ReadRequest& request) = 0;
  // Blocks until at least one request has ended, Wake() was called, or the deadline has passed;
  // returns all that have ended.
  virtual std::vector<ReadResult> Wait(absl::Time deadline) = 0;

  // Any thread: a Wait() that blocks, or else the next one, returns at once.
  virtual void Wake() = 0;
  // Any thread: what is in flight ends soon (CANCELLED, unless it was done), as far as the kernel
  // lets it: a read that the device never answers stays until it does.
  virtual void Cancel() = 0;
};

}  // namespace forestage
