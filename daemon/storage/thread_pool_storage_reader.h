// Reads with a few threads of its own, where io_uring is not to be had. Same meaning, piece by
// piece, through posix_fadvise, pread and madvise.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "daemon/storage/first_failure.h"
#include "daemon/storage/read_piece.h"
#include "daemon/storage/storage_reader.h"

namespace forestage {

// See StorageReader for who may call what. The destructor cancels what is in flight and waits for
// the threads.
class ThreadPoolStorageReader : public StorageReader {
 public:
  // With fewer threads where there are no more of them; RESOURCE_EXHAUSTED where there is none.
  // Requires: thread_count > 0.
  static absl::StatusOr<std::unique_ptr<ThreadPoolStorageReader>> Create(size_t thread_count);
  ~ThreadPoolStorageReader() override;

  absl::string_view name() const override { return "threads"; }
  size_t in_flight_max() const override;
  size_t in_flight() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Start(const ReadRequest& request) override ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<ReadResult> Wait(absl::Time deadline) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Request {
    ReadRequest request;
    ReadPlan plan;
    size_t next_piece = 0;
    size_t pieces_in_flight = 0;
    FirstFailure failure = {};
  };
  using RequestIterator = std::list<Request>::iterator;

  ThreadPoolStorageReader() = default;
  void RunThread() ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until there is a piece to read; false when the reader ends.
  bool TakePiece(RequestIterator* request, ReadPlan::Piece* piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasPieceOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks on storage.
  absl::Status ReadPieceOf(RequestIterator request, const ReadPlan::Piece& planned,
                           absl::Span<std::byte> scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndIfComplete(RequestIterator request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::list<Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadResult> ended_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Constant after construction.
  std::vector<std::thread> threads_;
};

}  // namespace forestage
