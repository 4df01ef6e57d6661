#include "client/src/slice_state.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/destination_memory.h"
#include "client/src/shard_reader.h"
#include "client/src/timed_call.h"
#include <sys/mman.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

// How much is waited for and read at once.
constexpr uint64_t kPieceBytes = 8 * kMiB;
// What is asked for at or after its deadline may take this long all the same: who asks again and
// again gets on.
constexpr absl::Duration kFirstPartPatience = absl::Milliseconds(500);
// Most runs of a strided slice that are looked at in one step.
constexpr uint64_t kRunsAtOnce = 4096;

// Anonymous memory, given back when it goes.
class PrivateCopy {
 public:
  static absl::StatusOr<std::shared_ptr<PrivateCopy>> Allocate(uint64_t bytes) {
    void* address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      return ErrnoStatus(errno, absl::StrCat("memory for a copy of ", bytes, " bytes"));
    }
    return std::shared_ptr<PrivateCopy>(new PrivateCopy(address, bytes));
  }
  ~PrivateCopy() { munmap(address_, bytes_); }
  PrivateCopy(const PrivateCopy&) = delete;
  PrivateCopy& operator=(const PrivateCopy&) = delete;

  absl::Span<std::byte> bytes() const { return {static_cast<std::byte*>(address_), bytes_}; }

 private:
  PrivateCopy(void* address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  void* const address_;
  const uint64_t bytes_;
};

}  // namespace

Slice::State::State(std::shared_ptr<const LoadSession> session, SlicePlan plan, size_t tensor_index,
                    uint32_t shard_index)
    : session_(std::move(session)),
      files_(session_->files()),
      plan_(std::move(plan)),
      tensor_index_(tensor_index),
      shard_index_(shard_index) {}

Slice::State::~State() { LoadSession::Drop(std::move(session_)); }

const OpenShard& Slice::State::shard() const { return files_->shards()[shard_index_]; }

absl::Status Slice::State::Prepare(uint64_t begin, uint64_t end, absl::Time deadline,
                                   ReadPlaces::Mark& mark) const {
  mark.Set(begin, /*waits_for_daemon=*/true);
  absl::StatusOr<Reader> reader =
      session_->WaitForBytes(shard_index_, begin, end, plan_.file_end(), deadline);
  if (!reader.ok()) {
    return absl::Status(reader.status().code(),
                        absl::StrCat(LineText(shard().path), " at offset ", begin, ": ",
                                     reader.status().message()));
  }
  mark.Set(begin, /*waits_for_daemon=*/false);
  if (*reader == Reader::kDaemon) return absl::OkStatus();
  if (begin != plan_.file_begin() && absl::Now() >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat(LineText(shard().path), " at offset ", begin,
                                                    ": the deadline passed while reading"));
  }
  const ReadAhead::Part slice = {
      .shard_index = shard_index_, .begin = plan_.file_begin(), .end = plan_.file_end()};
  if (deadline != absl::InfiniteFuture() && shard().mapped)
    return BringInUntil(slice, begin, end, deadline);
  session_->ReadAheadOf(slice, begin);
  return absl::OkStatus();
}

absl::Status Slice::State::BringInUntil(const ReadAhead::Part& slice, uint64_t begin, uint64_t end,
                                        absl::Time deadline) const {
  const absl::Status status =
      CallUntil(std::max(deadline, absl::Now() + kFirstPartPatience),
                [session = session_, files = files_, slice, begin, end]() mutable {
                  session->ReadAheadOf(slice, begin);
                  session->BringIn(slice.shard_index, begin, end);
                  // It is of no more use to this thread, which may be the last to leave.
                  session.reset();
                  const absl::Status populated =
                      PopulateRange(files->shards()[slice.shard_index], begin, end);
                  // Then it is read; errors are the read's own.
                  return absl::IsFailedPrecondition(populated) ? absl::OkStatus() : populated;
                });
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(absl::StrCat(shard().path, " at offset ", begin,
                                                  ": the storage has not answered by the deadline; "
                                                  "the read goes on behind"));
}

absl::StatusOr<SliceView> Slice::State::View(absl::Time deadline) const {
  RETURN_IF_ERROR(session_->CheckUsable());
  if (!plan_.contiguous()) {
    return absl::FailedPreconditionError(
        "the slice is not consecutive in its file, so there is no view of it; use CopyTo");
  }
  if (plan_.bytes() == 0) return SliceView(nullptr, {});
  if (!shard().mapped) return CopiedView(deadline);
  session_->MarkViewed(tensor_index_);
  ReadPlaces::Mark mark(session_->read_places(), shard_index_);
  for (uint64_t begin = plan_.file_begin(); begin < plan_.file_end();) {
    const uint64_t end = std::min(plan_.file_end(), AlignDown(begin, kPieceBytes) + kPieceBytes);
    RETURN_IF_ERROR(Prepare(begin, end, deadline, mark));
    const absl::Status populated = PopulateRange(shard(), begin, end);
    if (absl::IsFailedPrecondition(populated)) return CopiedView(deadline);
    RETURN_IF_ERROR(populated);
    begin = end;
  }
  RETURN_IF_ERROR(CheckUnchanged(shard(), plan_.file_end()));
  return SliceView(files_, shard().mapping.bytes().subspan(plan_.file_begin(), plan_.bytes()));
}

absl::StatusOr<SliceView> Slice::State::CopiedView(absl::Time deadline) const {
  // As far from a page's beginning as in the file, so that alignment does not depend on the mount.
  const uint64_t lead = plan_.file_begin() % PageBytes();
  ASSIGN_OR_RETURN(std::shared_ptr<PrivateCopy> copy, PrivateCopy::Allocate(lead + plan_.bytes()));
  const absl::Span<std::byte> destination = copy->bytes().subspan(lead);
  RETURN_IF_ERROR(CopyContiguous(destination, deadline));
  RETURN_IF_ERROR(CheckNotWritten(shard()));
  return SliceView(std::move(copy), destination);
}

absl::Status Slice::State::CopyTo(absl::Span<std::byte> destination, absl::Time deadline) const {
  RETURN_IF_ERROR(session_->CheckUsable());
  if (destination.size() != plan_.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the destination has ", destination.size(),
                                                   " bytes, the slice ", plan_.bytes()));
  }
  if (plan_.bytes() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(plan_.contiguous() ? CopyContiguous(destination, deadline)
                                     : CopyStrided(destination, deadline));
  return CheckNotWritten(shard());
}

absl::Status Slice::State::CopyContiguous(absl::Span<std::byte> destination,
                                          absl::Time deadline) const {
  AdviseHugePages(destination);
  ReadPlaces::Mark mark(session_->read_places(), shard_index_);
  for (uint64_t begin = plan_.file_begin(); begin < plan_.file_end();) {
    const uint64_t end = std::min(plan_.file_end(), AlignDown(begin, kPieceBytes) + kPieceBytes);
    RETURN_IF_ERROR(Prepare(begin, end, deadline, mark));
    session_->BringIn(shard_index_, begin, end);
    RETURN_IF_ERROR(
        ReadExactly(shard(), begin, destination.subspan(begin - plan_.file_begin(), end - begin)));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status Slice::State::CopyStrided(absl::Span<std::byte> destination,
                                       absl::Time deadline) const {
  AdviseHugePages(destination);
  ReadPlaces::Mark mark(session_->read_places(), shard_index_);
  const uint64_t run_bytes = plan_.run_bytes();
  std::vector<uint64_t> offsets;
  for (uint64_t run = 0; run < plan_.run_count();) {
    offsets.clear();
    plan_.ForEachRun(run, std::min(plan_.run_count(), run + kRunsAtOnce),
                     [&](uint64_t offset) { offsets.push_back(offset); });
    // As many of these as lie in one piece, and at least one.
    const uint64_t piece_end = offsets.front() + kPieceBytes;
    const auto beyond =
        std::partition_point(offsets.begin() + 1, offsets.end(),
                             [&](uint64_t offset) { return offset + run_bytes <= piece_end; });
    offsets.erase(beyond, offsets.end());
    RETURN_IF_ERROR(Prepare(offsets.front(), offsets.back() + run_bytes, deadline, mark));
    session_->BringIn(shard_index_, offsets.front(), offsets.back() + run_bytes);
    RETURN_IF_ERROR(ReadRuns(shard(), offsets, run_bytes,
                             destination.subspan(run * run_bytes, offsets.size() * run_bytes)));
    run += offsets.size();
  }
  return absl::OkStatus();
}

}  // namespace forestage
