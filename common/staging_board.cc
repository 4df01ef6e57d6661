#include "common/staging_board.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "common/board_protocol.h"
#include "common/check.h"
#include "common/errno_status.h"
#include "common/file_time.h"
#include "common/memfd.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

static_assert(sizeof(std::atomic<uint8_t>) == 1);

constexpr absl::Duration kWaitSlice = absl::Milliseconds(100);

int64_t MonotonicNow() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return NanosecondsOf(now);
}

uint32_t* FutexWord(const std::atomic<uint32_t>& word) {
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&word));
}

// The daemon's steps of board_protocol.h.
class WriterMemory {
 public:
  WriterMemory(BoardHeader& header, std::atomic<uint8_t>* states)
      : header_(header), states_(states) {}

  void StoreState(uint64_t index, ExtentState state) {
    states_[index].store(static_cast<uint8_t>(state), std::memory_order_release);
  }
  bool CompareExchangeState(uint64_t index, ExtentState expected, ExtentState desired) {
    uint8_t value = static_cast<uint8_t>(expected);
    return states_[index].compare_exchange_strong(value, static_cast<uint8_t>(desired),
                                                  std::memory_order_acq_rel);
  }
  void BumpChangeCount() { header_.change_count.fetch_add(1, std::memory_order_release); }
  void ClosePhase() {
    header_.phase.store(static_cast<uint32_t>(BoardPhase::kClosed), std::memory_order_release);
  }
  void Wake(uint32_t wait_bits) {
    syscall(SYS_futex, FutexWord(header_.change_count), FUTEX_WAKE_BITSET, INT_MAX, nullptr,
            nullptr, wait_bits);
  }

 private:
  BoardHeader& header_;
  std::atomic<uint8_t>* const states_;
};

// A waiting rank's steps.
class WaiterMemory {
 public:
  WaiterMemory(const StagingBoardView& view, const BoardHeader& header, absl::Time deadline,
               const std::atomic<bool>* cancelled)
      : view_(view), header_(header), deadline_(deadline), cancelled_(cancelled) {}

  uint32_t LoadChangeCount() const { return header_.change_count.load(std::memory_order_acquire); }
  ExtentState LoadState(uint64_t index) const { return view_.state(index); }
  bool GivesUp() {
    if (cancelled_ != nullptr && cancelled_->load(std::memory_order_acquire)) return true;
    if (view_.daemon_gone()) return true;
    left_ = deadline_ - absl::Now();
    return left_ <= absl::ZeroDuration();
  }
  void SleepUnlessChanged(uint32_t seen, uint32_t wait_bits) const {
    // Unlike FUTEX_WAIT's, this timeout is a point in time, of CLOCK_MONOTONIC.
    const timespec until =
        absl::ToTimespec(absl::Nanoseconds(MonotonicNow()) + std::min(left_, kWaitSlice));
    syscall(SYS_futex, FutexWord(header_.change_count), FUTEX_WAIT_BITSET, seen, &until, nullptr,
            wait_bits);
  }

 private:
  const StagingBoardView& view_;
  const BoardHeader& header_;
  const absl::Time deadline_;
  const std::atomic<bool>* const cancelled_;
  absl::Duration left_;
};

// The fields of the header that do not change.
struct ConstantFields {
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t extent_count;
  uint64_t extent_bytes;
  uint64_t generation;
};

// Reads each field once (volatile: the compiler must not read it again after a check): the writer
// may change the memory at any moment.
ConstantFields CopyConstantFields(const std::byte* board) {
  const auto* header = reinterpret_cast<const volatile BoardHeader*>(board);
  return {.magic = header->magic,
          .layout_version = header->layout_version,
          .header_bytes = header->header_bytes,
          .extent_count = header->extent_count,
          .extent_bytes = header->extent_bytes,
          .generation = header->generation};
}

bool IsExtentSize(uint64_t bytes) {
  return bytes >= kBoardExtentBytesMin && bytes <= kBoardExtentBytesMax &&
         (bytes & (bytes - 1)) == 0;
}

absl::Status CheckConstantFields(const ConstantFields& fields, uint64_t file_bytes) {
  if (fields.magic != kBoardMagic) {
    return absl::InvalidArgumentError("not a staging board: its magic number is wrong");
  }
  if (fields.layout_version != kBoardLayoutVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging board of layout version ", fields.layout_version, "; this program knows ",
        kBoardLayoutVersion, " only; use daemon and client of one release"));
  }
  if (fields.header_bytes != kBoardHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging board whose header has ", fields.header_bytes, " bytes, not ", kBoardHeaderBytes));
  }
  if (fields.extent_count > kBoardExtentCountMax ||
      fields.extent_count != file_bytes - kBoardHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("staging board of ", fields.extent_count,
                                                   " extents in a file of ", file_bytes, " bytes"));
  }
  if (!IsExtentSize(fields.extent_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging board with extents of ", fields.extent_bytes, " bytes; a power of two from ",
        kBoardExtentBytesMin, " to ", kBoardExtentBytesMax, " is expected"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagingBoard>> StagingBoard::Create(const Options& options) {
  if (options.extent_count > kBoardExtentCountMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a checkpoint of ", options.extent_count,
                                                     " extents; at most ", kBoardExtentCountMax,
                                                     " are served"));
  }
  CHECK(IsExtentSize(options.extent_bytes));
  const uint64_t bytes = kBoardHeaderBytes + options.extent_count;
  ASSIGN_OR_RETURN(UniqueFd fd, MakeFixedSizeMemfd("forestage-board", bytes));
  ASSIGN_OR_RETURN(FileMapping mapping, FileMapping::MapReadWrite(fd.get(), bytes));
  RETURN_IF_ERROR(SealFutureWrites(fd.get()));
  return std::unique_ptr<StagingBoard>(
      new StagingBoard(std::move(fd), std::move(mapping), options));
}

StagingBoard::StagingBoard(UniqueFd fd, FileMapping mapping, const Options& options)
    : fd_(std::move(fd)),
      mapping_(std::move(mapping)),
      extent_count_(options.extent_count),
      header_(new (const_cast<std::byte*>(mapping_.bytes().data()))
                  BoardHeader{.magic = kBoardMagic,
                              .layout_version = kBoardLayoutVersion,
                              .header_bytes = kBoardHeaderBytes,
                              .extent_count = options.extent_count,
                              .extent_bytes = options.extent_bytes,
                              .generation = options.generation,
                              .heartbeat_ns = MonotonicNow(),
                              .change_count = 0,
                              .phase = static_cast<uint32_t>(BoardPhase::kServing),
                              .held_back_count = 0}) {}

std::atomic<uint8_t>* StagingBoard::StateBytes() const {
  std::byte* base = const_cast<std::byte*>(mapping_.bytes().data());
  return reinterpret_cast<std::atomic<uint8_t>*>(base + kBoardHeaderBytes);
}

ExtentState StagingBoard::state(uint64_t index) const {
  CHECK(index < extent_count_);
  return static_cast<ExtentState>(StateBytes()[index].load(std::memory_order_acquire));
}

void StagingBoard::SetState(uint64_t index, ExtentState state) {
  CHECK(index < extent_count_);
  WriterMemory memory(*header_, StateBytes());
  SetBoardState(memory, index, state);
}

bool StagingBoard::CompareAndSetState(uint64_t index, ExtentState expected, ExtentState desired) {
  CHECK(index < extent_count_);
  WriterMemory memory(*header_, StateBytes());
  return MoveBoardStates(memory, index, index + 1, expected, desired);
}

void StagingBoard::CompareAndSetStates(uint64_t first, uint64_t last, ExtentState expected,
                                       ExtentState desired) {
  CHECK(first <= last && last <= extent_count_);
  WriterMemory memory(*header_, StateBytes());
  MoveBoardStates(memory, first, last, expected, desired);
}

void StagingBoard::Beat() {
  header_->heartbeat_ns.store(MonotonicNow(), std::memory_order_release);
}

void StagingBoard::NoteHeldBack() {
  header_->held_back_count.fetch_add(1, std::memory_order_release);
}

void StagingBoard::Close() {
  WriterMemory memory(*header_, StateBytes());
  CloseBoard(memory);
}

absl::StatusOr<std::unique_ptr<StagingBoardView>> StagingBoardView::Map(const UniqueFd& fd) {
  if (const absl::Status sealed = CheckSealed(fd.get(), /*unwritable=*/false); !sealed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("staging board: ", sealed.message()));
  }
  struct stat stat_buffer = {};
  if (fstat(fd.get(), &stat_buffer) != 0) return ErrnoStatus(errno, "fstat of the staging board");
  const uint64_t file_bytes = static_cast<uint64_t>(stat_buffer.st_size);
  if (file_bytes < kBoardHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging board of ", file_bytes, " bytes; its header alone has ", kBoardHeaderBytes));
  }
  ASSIGN_OR_RETURN(FileMapping mapping, FileMapping::MapReadOnly(fd.get(), file_bytes));
  const ConstantFields fields = CopyConstantFields(mapping.bytes().data());
  RETURN_IF_ERROR(CheckConstantFields(fields, file_bytes));
  return std::unique_ptr<StagingBoardView>(new StagingBoardView(
      std::move(mapping), fields.extent_count, fields.extent_bytes, fields.generation));
}

StagingBoardView::StagingBoardView(FileMapping mapping, uint64_t extent_count,
                                   uint64_t extent_bytes, uint64_t generation)
    : mapping_(std::move(mapping)),
      extent_count_(extent_count),
      extent_bytes_(extent_bytes),
      generation_(generation),
      header_(reinterpret_cast<const BoardHeader*>(mapping_.bytes().data())),
      states_(reinterpret_cast<const std::atomic<uint8_t>*>(mapping_.bytes().data() +
                                                            kBoardHeaderBytes)) {}

ExtentState StagingBoardView::state(uint64_t index) const {
  if (index >= extent_count_) return ExtentState::kFailed;
  const uint8_t value = states_[index].load(std::memory_order_acquire);
  return value > kExtentStateMax ? ExtentState::kFailed : static_cast<ExtentState>(value);
}

bool StagingBoardView::closed() const {
  return header_->phase.load(std::memory_order_acquire) !=
         static_cast<uint32_t>(BoardPhase::kServing);
}

uint32_t StagingBoardView::held_back_count() const {
  return header_->held_back_count.load(std::memory_order_acquire);
}

bool StagingBoardView::daemon_gone() const {
  if (closed()) return true;
  const int64_t beat = header_->heartbeat_ns.load(std::memory_order_acquire);
  const int64_t now = MonotonicNow();
  // A beat from the future is a corrupt board.
  return beat < now - absl::ToInt64Nanoseconds(kBoardHeartbeatTimeout) ||
         beat > now + absl::ToInt64Nanoseconds(kBoardHeartbeatTimeout);
}

ExtentState StagingBoardView::WaitFor(uint64_t index, absl::Time deadline,
                                      const std::atomic<bool>* cancelled) const {
  WaiterMemory memory(*this, *header_, deadline, cancelled);
  return WaitOnBoard(memory, index);
}

}  // namespace forestage
