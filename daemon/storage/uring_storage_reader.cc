#include "daemon/storage/uring_storage_reader.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/io_uring_support.h"
#include "common/status_macros.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

// A piece takes an advice and a read; the rest is for cancels and the wake-up.
constexpr unsigned kRingEntries = 4 * kUringPiecesMax;
// Unbounded workers serve what is not a regular file: only our wake-up, which polls.
constexpr unsigned kUnboundedWorkersMax = 1;
constexpr absl::Duration kLongestWait = absl::Hours(1);
constexpr absl::Duration kRetryPause = absl::Milliseconds(1);

// user_data: a slot's number and which of its operations, or one of these.
constexpr uint64_t kWakeTag = ~uint64_t{1};
constexpr uint64_t kCancelTag = ~uint64_t{2};
constexpr uint64_t kAdviceBit = 1;

uint64_t StepTag(size_t slot_index) { return slot_index << 1; }
uint64_t AdviceTag(size_t slot_index) { return (slot_index << 1) | kAdviceBit; }

}  // namespace

void UringStorageReader::RingDeleter::operator()(io_uring* ring) const {
  io_uring_queue_exit(ring);
  delete ring;
}

absl::StatusOr<UringStorageReader::Ring> UringStorageReader::MakeRing() {
  auto ring = std::make_unique<io_uring>();
  io_uring_params parameters = {};
  const int error = io_uring_queue_init_params(kRingEntries, ring.get(), &parameters);
  if (error < 0) return IoUringRefusedStatus(-error, "io_uring_setup");
  Ring owned(ring.release());
  RETURN_IF_ERROR(CheckRing(owned.get()));
  return owned;
}

absl::Status UringStorageReader::CheckRing(io_uring* ring) {
  RETURN_IF_ERROR(CheckIoUringOperations(ring->ring_fd, ring->features));
  unsigned workers[2] = {static_cast<unsigned>(kUringPiecesMax), kUnboundedWorkersMax};
  // Linux 5.15 or later; before, the ring's size bounds them.
  (void)io_uring_register_iowq_max_workers(ring, workers);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<UringStorageReader>> UringStorageReader::Create() {
  ASSIGN_OR_RETURN(Ring ring, MakeRing());
  UniqueFd wake_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return ErrnoStatus(errno, "eventfd");
  std::unique_ptr<UringStorageReader> reader(
      new UringStorageReader(std::move(ring), std::move(wake_fd)));
  // Shows too that io_uring_enter is allowed.
  reader->ArmWake();
  const int submitted = io_uring_submit(reader->ring_.get());
  if (submitted < 0) return IoUringRefusedStatus(-submitted, "io_uring_enter");
  return reader;
}

UringStorageReader::UringStorageReader(Ring ring, UniqueFd wake_fd)
    : wake_fd_(std::move(wake_fd)),
      ring_(std::move(ring)),
      scratch_(std::make_unique<std::byte[]>(kScratchBytes)),
      slots_(kUringPiecesMax) {
  for (size_t i = slots_.size(); i > 0; --i) free_slots_.push_back(i - 1);
}

UringStorageReader::~UringStorageReader() {
  Cancel();
  while (!requests_.empty()) (void)Wait(absl::Now() + kLongestWait);
}

size_t UringStorageReader::in_flight_max() const { return kReaderRequestsMax; }

void UringStorageReader::Start(const ReadRequest& request) {
  CHECK(in_flight() < in_flight_max());
  requests_.push_back({.request = request, .plan = PlanRead(request)});
  const auto added = std::prev(requests_.end());
  if (added->plan.pieces.empty()) return EndIfComplete(added);
  FillSlots();
  SubmitQueued();
}

std::vector<ReadResult> UringStorageReader::Wait(absl::Time deadline) {
  while (true) {
    ReapCompletions();
    if (cancel_requested_.exchange(false)) CancelInFlight();
    FillSlots();
    if (!ended_.empty() || woken_) break;
    SubmitAndWait(deadline);
    ReapCompletions();
    if (!ended_.empty() || woken_ || absl::Now() >= deadline) break;
  }
  FillSlots();
  SubmitQueued();
  woken_ = false;
  return std::exchange(ended_, {});
}

void UringStorageReader::Wake() {
  const uint64_t one = 1;
  // It can only fail when the counter is full, and then it is readable already.
  (void)!write(wake_fd_.get(), &one, sizeof(one));
}

void UringStorageReader::Cancel() {
  cancel_requested_.store(true);
  Wake();
}

io_uring_sqe* UringStorageReader::TakeEntry() {
  io_uring_sqe* entry = io_uring_get_sqe(ring_.get());
  while (entry == nullptr) {
    SubmitQueued();
    entry = io_uring_get_sqe(ring_.get());
  }
  return entry;
}

void UringStorageReader::MakeRoomForTwo() {
  while (io_uring_sq_space_left(ring_.get()) < 2) SubmitQueued();
}

void UringStorageReader::SubmitQueued() {
  if (io_uring_sq_ready(ring_.get()) == 0) return;
  // The kernel may be short of memory for requests until some of those in flight have ended.
  if (io_uring_submit(ring_.get()) < 0) absl::SleepFor(kRetryPause);
}

void UringStorageReader::ArmWake() {
  io_uring_sqe* entry = TakeEntry();
  io_uring_prep_poll_add(entry, wake_fd_.get(), POLLIN);
  io_uring_sqe_set_data64(entry, kWakeTag);
  wake_armed_ = true;
}

void UringStorageReader::FillSlots() {
  for (auto request = requests_.begin(); request != requests_.end(); ++request) {
    while (request->next_piece < request->plan.pieces.size()) {
      if (free_slots_.empty()) return;
      const size_t index = free_slots_.back();
      free_slots_.pop_back();
      slots_[index].owner = request;
      const ReadPlan::Piece& piece = request->plan.pieces[request->next_piece];
      slots_[index].piece.emplace(*request->request.file, piece.range, piece.way);
      ++request->next_piece;
      ++request->pieces_in_flight;
      SubmitStep(index);
    }
  }
}

void UringStorageReader::SubmitStep(size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const PieceStep& step = slot.piece->step();
  const ShardFile& file = slot.piece->file();
  switch (step.kind) {
    case PieceStep::Kind::kAdvise: {
      MakeRoomForTwo();
      io_uring_sqe* advice = TakeEntry();
      io_uring_prep_fadvise(advice, file.fd(), step.offset, static_cast<off_t>(step.bytes),
                            POSIX_FADV_WILLNEED);
      // Hard: the read comes even when the advice was refused.
      io_uring_sqe_set_flags(advice, IOSQE_IO_HARDLINK);
      io_uring_sqe_set_data64(advice, AdviceTag(slot_index));
      io_uring_sqe* probe = TakeEntry();
      io_uring_prep_read(probe, file.fd(), scratch_.get(), 1, step.probe_offset);
      io_uring_sqe_set_data64(probe, StepTag(slot_index));
      slot.operations = 2;
      return;
    }
    case PieceStep::Kind::kRead: {
      io_uring_sqe* read = TakeEntry();
      io_uring_prep_read(read, file.fd(), scratch_.get(), static_cast<unsigned>(step.bytes),
                         step.offset);
      io_uring_sqe_set_data64(read, StepTag(slot_index));
      slot.operations = 1;
      return;
    }
    case PieceStep::Kind::kPopulate: {
      io_uring_sqe* populate = TakeEntry();
      auto* address = const_cast<std::byte*>(file.mapping().bytes().data()) + step.offset;
      io_uring_prep_madvise(populate, address, static_cast<off_t>(step.bytes), MADV_POPULATE_READ);
      io_uring_sqe_set_data64(populate, StepTag(slot_index));
      slot.operations = 1;
      return;
    }
    case PieceStep::Kind::kDone:
      CHECK(false);
  }
}

void UringStorageReader::CancelInFlight() {
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto current = request++;
    current->failure.Cancel(CancelledReadStatus(current->request));
    current->next_piece = current->plan.pieces.size();
    EndIfComplete(current);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].operations == 0) continue;
    for (const uint64_t tag : {AdviceTag(i), StepTag(i)}) {
      io_uring_sqe* entry = TakeEntry();
      io_uring_prep_cancel64(entry, tag, 0);
      io_uring_sqe_set_data64(entry, kCancelTag);
    }
  }
}

void UringStorageReader::SubmitAndWait(absl::Time deadline) {
  if (!wake_armed_) ArmWake();
  const absl::Duration left =
      std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kLongestWait);
  const timespec spec = absl::ToTimespec(left);
  __kernel_timespec timeout = {.tv_sec = spec.tv_sec, .tv_nsec = spec.tv_nsec};
  io_uring_cqe* completion = nullptr;
  const int result =
      io_uring_submit_and_wait_timeout(ring_.get(), &completion, 1, &timeout, nullptr);
  if (result == -EAGAIN || result == -ENOMEM || result == -EBUSY) {
    ReapCompletions();
    absl::SleepFor(kRetryPause);
  }
}

void UringStorageReader::ReapCompletions() {
  io_uring_cqe* completion = nullptr;
  while (io_uring_peek_cqe(ring_.get(), &completion) == 0) {
    const uint64_t tag = completion->user_data;
    const int32_t result = completion->res;
    io_uring_cqe_seen(ring_.get(), completion);
    OnCompletion(tag, result);
  }
}

void UringStorageReader::OnCompletion(uint64_t tag, int32_t result) {
  if (tag == kWakeTag) {
    uint64_t count = 0;
    (void)!read(wake_fd_.get(), &count, sizeof(count));
    wake_armed_ = false;
    woken_ = true;
    return;
  }
  if (tag == kCancelTag || tag == LIBURING_UDATA_TIMEOUT) return;
  const size_t slot_index = tag >> 1;
  CHECK(slot_index < slots_.size());
  Slot& slot = slots_[slot_index];
  CHECK(slot.operations > 0);
  if ((tag & kAdviceBit) == 0) slot.step_result = result;
  if (--slot.operations == 0) OnStepEnded(slot_index);
}

void UringStorageReader::OnStepEnded(size_t slot_index) {
  Slot& slot = slots_[slot_index];
  const auto owner = slot.owner;
  // What can tell nothing any more goes no further.
  if (owner->failure.Wants(slot.piece->begin())) {
    slot.piece->OnResult(slot.step_result);
    if (!slot.piece->done()) return SubmitStep(slot_index);
    if (!slot.piece->status().ok()) {
      owner->failure.OnPieceFailed(slot.piece->begin(), slot.piece->status());
      owner->next_piece = owner->plan.pieces.size();
    }
  }
  slot.piece.reset();
  free_slots_.push_back(slot_index);
  --owner->pieces_in_flight;
  EndIfComplete(owner);
}

void UringStorageReader::EndIfComplete(std::list<Request>::iterator request) {
  if (request->pieces_in_flight > 0 || request->next_piece < request->plan.pieces.size()) return;
  absl::Status status = request->failure.status();
  if (status.ok()) status = CheckFileCovers(request->request);
  ended_.push_back({.tag = request->request.tag,
                    .status = std::move(status),
                    .storage_bytes = request->plan.storage_bytes,
                    .all_cached = request->plan.all_cached});
  requests_.erase(request);
}

}  // namespace forestage
