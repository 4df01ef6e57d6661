#include "daemon/storage/faulty_storage_reader.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

#include "common/check.h"
#include "common/units.h"
#include "daemon/storage/read_piece.h"

namespace forestage {

FaultyStorageReader::FaultyStorageReader(std::unique_ptr<StorageReader> inner, ReadFaults& faults)
    : faults_(faults), inner_(std::move(inner)) {
  faults_.Attach(this);
}

FaultyStorageReader::~FaultyStorageReader() {
  faults_.OnHoldEnded(held_.size());
  // Last: the faults may go once no reader is attached.
  faults_.Detach(this);
}

void FaultyStorageReader::Start(const ReadRequest& request) {
  CHECK(in_flight() < in_flight_max());
  const uint64_t release_count = faults_.release_count();
  ReadFault fault;
  if (!faults_.OnRequest(request, &fault)) return inner_->Start(request);
  switch (fault.kind) {
    case ReadFault::Kind::kErrno:
      ended_.push_back(
          {.tag = request.tag,
           .status = ReadErrorStatus(*request.file, std::max(request.offset, fault.begin),
                                     fault.error_number),
           .storage_bytes = 0});
      return;
    case ReadFault::Kind::kEndOfFile:
      ended_.push_back(
          {.tag = request.tag,
           .status = EndOfFileStatus(*request.file, std::max(request.offset, fault.begin)),
           .storage_bytes = 0});
      return;
    case ReadFault::Kind::kShort: {
      ReadRequest first = request;
      first.bytes = AlignDown(request.bytes / 2, PageBytes());
      ReadRequest rest = request;
      rest.offset += first.bytes;
      rest.bytes -= first.bytes;
      rests_[request.tag] = {.request = rest};
      return inner_->Start(first);
    }
    case ReadFault::Kind::kHold:
    case ReadFault::Kind::kDeaf:
      held_.push_back({.request = request,
                       .release_count = release_count,
                       .deaf = fault.kind == ReadFault::Kind::kDeaf});
      return;
  }
}

std::vector<ReadResult> FaultyStorageReader::Wait(absl::Time deadline) {
  LetGoOfHeld();
  const bool already = !ended_.empty();
  for (ReadResult& result : inner_->Wait(already ? absl::InfinitePast() : deadline)) {
    if (FinishInner(&result)) ended_.push_back(std::move(result));
  }
  // The wake-up may have been Release()'s or Cancel()'s.
  LetGoOfHeld();
  return std::exchange(ended_, {});
}

void FaultyStorageReader::Cancel() {
  cancel_requested_.store(true);
  inner_->Cancel();
}

bool FaultyStorageReader::FinishInner(ReadResult* result) {
  const auto rest = rests_.find(result->tag);
  if (rest == rests_.end()) return true;
  result->storage_bytes += rest->second.storage_bytes;
  result->all_cached = false;
  if (!result->status.ok() || rest->second.request.bytes == 0) {
    rests_.erase(rest);
    return true;
  }
  rest->second.storage_bytes = result->storage_bytes;
  const ReadRequest second = rest->second.request;
  rest->second.request.bytes = 0;
  inner_->Start(second);
  return false;
}

void FaultyStorageReader::LetGoOfHeld() {
  const bool cancelled = cancel_requested_.exchange(false);
  const uint64_t release_count = faults_.release_count();
  std::vector<Held> still_held;
  uint64_t ended = 0;
  for (Held& held : std::exchange(held_, {})) {
    if (held.release_count != release_count) {
      ++ended;
      inner_->Start(held.request);
    } else if (cancelled && !held.deaf) {
      ++ended;
      ended_.push_back({.tag = held.request.tag,
                        .status = CancelledReadStatus(held.request),
                        .storage_bytes = 0});
    } else {
      still_held.push_back(std::move(held));
    }
  }
  held_ = std::move(still_held);
  if (ended > 0) faults_.OnHoldEnded(ended);
}

}  // namespace forestage
