#include "daemon/storage/thread_pool_storage_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/thread_start.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

// Carries out one step; the bytes read, 0, or a negative errno.
int64_t CarryOut(const ShardFile& file, const PieceStep& step, absl::Span<std::byte> scratch) {
  switch (step.kind) {
    case PieceStep::Kind::kAdvise: {
      (void)posix_fadvise(file.fd(), static_cast<off_t>(step.offset),
                          static_cast<off_t>(step.bytes), POSIX_FADV_WILLNEED);
      const ssize_t count =
          pread(file.fd(), scratch.data(), 1, static_cast<off_t>(step.probe_offset));
      return count < 0 ? -errno : count;
    }
    case PieceStep::Kind::kRead: {
      CHECK(step.bytes <= scratch.size());
      const ssize_t count =
          pread(file.fd(), scratch.data(), step.bytes, static_cast<off_t>(step.offset));
      return count < 0 ? -errno : count;
    }
    case PieceStep::Kind::kPopulate: {
      const absl::Status status =
          file.mapping().PopulateRead(step.offset, step.offset + step.bytes);
      return status.ok() ? 0 : -ErrnoOf(status);
    }
    case PieceStep::Kind::kDone:
      break;
  }
  CHECK(false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadPoolStorageReader>> ThreadPoolStorageReader::Create(
    size_t thread_count) {
  CHECK(thread_count > 0);
  std::unique_ptr<ThreadPoolStorageReader> reader(new ThreadPoolStorageReader());
  for (size_t i = 0; i < thread_count; ++i) {
    absl::StatusOr<std::thread> thread = StartThread([made = reader.get()] { made->RunThread(); });
    if (!thread.ok() && i == 0) return thread.status();
    if (!thread.ok()) break;
    reader->threads_.push_back(*std::move(thread));
  }
  return reader;
}

ThreadPoolStorageReader::~ThreadPoolStorageReader() {
  Cancel();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

size_t ThreadPoolStorageReader::in_flight_max() const { return kReaderRequestsMax; }

size_t ThreadPoolStorageReader::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return requests_.size() + ended_.size();
}

void ThreadPoolStorageReader::Start(const ReadRequest& request) {
  CHECK(in_flight() < in_flight_max());
  Request added = {.request = request, .plan = PlanRead(request)};
  absl::MutexLock lock(&mutex_);
  requests_.push_back(std::move(added));
  EndIfComplete(std::prev(requests_.end()));
}

bool ThreadPoolStorageReader::HasNews() const { return woken_ || !ended_.empty(); }

std::vector<ReadResult> ThreadPoolStorageReader::Wait(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(this, &ThreadPoolStorageReader::HasNews), deadline);
  woken_ = false;
  return std::exchange(ended_, {});
}

void ThreadPoolStorageReader::Wake() {
  absl::MutexLock lock(&mutex_);
  woken_ = true;
}

void ThreadPoolStorageReader::Cancel() {
  absl::MutexLock lock(&mutex_);
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto current = request++;
    current->failure.Cancel(CancelledReadStatus(current->request));
    current->next_piece = current->plan.pieces.size();
    EndIfComplete(current);
  }
  woken_ = true;
}

bool ThreadPoolStorageReader::HasPieceOrStops() const {
  if (stopping_) return true;
  for (const Request& request : requests_) {
    if (request.next_piece < request.plan.pieces.size()) return true;
  }
  return false;
}

bool ThreadPoolStorageReader::TakePiece(RequestIterator* request, ReadPlan::Piece* piece) {
  mutex_.Await(absl::Condition(this, &ThreadPoolStorageReader::HasPieceOrStops));
  for (auto candidate = requests_.begin(); candidate != requests_.end(); ++candidate) {
    if (candidate->next_piece == candidate->plan.pieces.size()) continue;
    *request = candidate;
    *piece = candidate->plan.pieces[candidate->next_piece++];
    ++candidate->pieces_in_flight;
    return true;
  }
  return false;
}

void ThreadPoolStorageReader::RunThread() {
  const auto scratch = std::make_unique<std::byte[]>(kScratchBytes);
  while (true) {
    RequestIterator request;
    ReadPlan::Piece piece;
    {
      absl::MutexLock lock(&mutex_);
      if (!TakePiece(&request, &piece)) return;
    }
    absl::Status status = ReadPieceOf(request, piece, {scratch.get(), kScratchBytes});
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      request->failure.OnPieceFailed(piece.range.begin, std::move(status));
      request->next_piece = request->plan.pieces.size();
    }
    --request->pieces_in_flight;
    EndIfComplete(request);
  }
}

absl::Status ThreadPoolStorageReader::ReadPieceOf(RequestIterator request,
                                                  const ReadPlan::Piece& planned,
                                                  absl::Span<std::byte> scratch) {
  const ShardFile* file = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    file = request->request.file;
  }
  ReadPiece piece(*file, planned.range, planned.way);
  while (!piece.done()) {
    piece.OnResult(CarryOut(*file, piece.step(), scratch));
    absl::MutexLock lock(&mutex_);
    // What can tell nothing any more goes no further.
    if (!request->failure.Wants(planned.range.begin)) return absl::OkStatus();
  }
  return piece.status();
}

void ThreadPoolStorageReader::EndIfComplete(RequestIterator request) {
  if (request->pieces_in_flight > 0 || request->next_piece < request->plan.pieces.size()) return;
  absl::Status status = request->failure.status();
  // Asks this machine only, so it may be asked under the lock.
  if (status.ok()) status = CheckFileCovers(request->request);
  ended_.push_back({.tag = request->request.tag,
                    .status = std::move(status),
                    .storage_bytes = request->plan.storage_bytes,
                    .all_cached = request->plan.all_cached});
  requests_.erase(request);
}

}  // namespace forestage
