#include "daemon/storage/read_piece.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/check.h"
#include "common/errno_status.h"
#include "common/units.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

// Pieces of files that are read whole, without advice: enough reads in flight, small buffers.
constexpr uint64_t kReadPieceBytes = 1 * kMiB;
// EINTR and EAGAIN taken for one step; a signal storm is not a reason to spin.
constexpr int kInterruptionsMax = 1000;

std::vector<ByteRange> CutWhole(ByteRange range, uint64_t piece_bytes) {
  std::vector<ByteRange> pieces;
  for (uint64_t begin = range.begin; begin < range.end; begin += piece_bytes) {
    pieces.push_back({.begin = begin, .end = std::min(begin + piece_bytes, range.end)});
  }
  return pieces;
}

// Pieces that begin and end with something missing. Pages between that are there cost an advice
// nothing, one advice for each hole would.
std::vector<ByteRange> CutMissing(const std::vector<ByteRange>& missing, uint64_t piece_bytes) {
  std::vector<ByteRange> pieces;
  for (ByteRange range : missing) {
    while (range.begin < range.end) {
      if (!pieces.empty() && range.begin < pieces.back().begin + piece_bytes) {
        const uint64_t limit = pieces.back().begin + piece_bytes;
        pieces.back().end = std::min(range.end, limit);
        range.begin = pieces.back().end;
      } else {
        pieces.push_back({.begin = range.begin, .end = range.begin});
      }
    }
  }
  return pieces;
}

// Pieces that end at block boundaries, with something missing in each.
std::vector<ByteRange> CutIntoBlocks(const std::vector<ByteRange>& missing) {
  std::vector<ByteRange> pieces;
  for (ByteRange range : missing) {
    while (range.begin < range.end) {
      const uint64_t block = AlignDown(range.begin, kFaultBlockBytes);
      const uint64_t end = std::min(range.end, block + kFaultBlockBytes);
      if (!pieces.empty() && pieces.back().begin >= block) {
        pieces.back().end = end;
      } else {
        pieces.push_back({.begin = range.begin, .end = end});
      }
      range.begin = end;
    }
  }
  return pieces;
}

bool IsColdBlock(const std::vector<ByteRange>& missing) {
  return !missing.empty() && missing.front().begin % kFaultBlockBytes == 0 &&
         missing.front().bytes() >= kFaultBlockBytes;
}

}  // namespace

ReadPlan PlanRead(const ReadRequest& request) {
  CHECK(request.file != nullptr);
  const ShardFile& file = *request.file;
  CHECK(request.offset % PageBytes() == 0 && request.offset <= file.bytes() &&
        request.bytes <= file.bytes() - request.offset);
  const ByteRange range = {.begin = request.offset, .end = request.offset + request.bytes};
  ReadPlan plan;
  const std::optional<std::vector<ByteRange>> missing =
      file.MissingRanges(request.offset, request.bytes);
  if (missing.has_value()) {
    plan.way = file.mount().fill_way();
    if (plan.way == FillWay::kUnknown && !IsColdBlock(*missing)) plan.way = FillWay::kAdvice;
    plan.pieces = plan.way == FillWay::kAdvice ? CutMissing(*missing, file.advice_bytes_max())
                                               : CutIntoBlocks(*missing);
    for (const ByteRange& hole : *missing) plan.storage_bytes += hole.bytes();
    return plan;
  }
  plan.pieces = CutWhole(range, file.mapping().empty() ? kReadPieceBytes : file.advice_bytes_max());
  plan.storage_bytes = request.bytes;
  return plan;
}

absl::Status ReadErrorStatus(const ShardFile& file, uint64_t offset, int error_number) {
  return ErrnoStatus(error_number, absl::StrCat("reading ", file.name(), " at offset ", offset));
}

absl::Status EndOfFileStatus(const ShardFile& file, uint64_t offset) {
  return absl::OutOfRangeError(absl::StrCat("reading ", file.name(), " at offset ", offset,
                                            ": the file ends there; it had ", file.bytes(),
                                            " bytes when it was opened"));
}

absl::Status CancelledReadStatus(const ReadRequest& request) {
  return absl::CancelledError(absl::StrCat("reading ", request.file->name(), " at offset ",
                                           request.offset, " was cancelled"));
}

absl::Status CheckFileCovers(const ReadRequest& request) {
  const absl::StatusOr<uint64_t> bytes = request.file->CurrentBytes();
  if (!bytes.ok()) return bytes.status();
  if (*bytes >= request.offset + request.bytes) return absl::OkStatus();
  return EndOfFileStatus(*request.file, *bytes);
}

ReadPiece::ReadPiece(const ShardFile& file, ByteRange range, FillWay way)
    : file_(&file), range_(range), verification_(VerificationFor(file)) {
  CHECK(range.begin < range.end && range.end <= file.bytes());
  if (verification_ == Verification::kRead) {
    Fill({range_});
    return;
  }
  if (way == FillWay::kUnknown) {
    // Another piece may have told meanwhile.
    way = file.mount().fill_way();
    const bool cold_block = range.bytes() == kFaultBlockBytes &&
                            file.ResidentBytes(range.begin, range.bytes()) == uint64_t{0};
    if (way == FillWay::kUnknown && !cold_block) way = FillWay::kAdvice;
  }
  Begin(way);
}

void ReadPiece::Begin(FillWay way) {
  switch (way) {
    case FillWay::kUnknown:
      trial_ = Trial::kFault;
      step_ = {.kind = PieceStep::Kind::kPopulate, .offset = range_.begin, .bytes = PageBytes()};
      return;
    case FillWay::kFaults:
      return verification_ == Verification::kMincore ? FaultIn(Fault::kFirstPage) : Populate();
    case FillWay::kAdvice:
      step_ = {.kind = PieceStep::Kind::kAdvise,
               .offset = range_.begin,
               .bytes = range_.bytes(),
               .probe_offset = AlignDown(range_.end - 1, PageBytes())};
      return;
  }
}

void ReadPiece::FaultIn(Fault fault) {
  fault_ = fault;
  const uint64_t page = fault == Fault::kFirstPage ? range_.begin : range_.end - 1;
  const uint64_t begin = AlignDown(page, PageBytes());
  step_ = {.kind = PieceStep::Kind::kPopulate,
           .offset = begin,
           .bytes = std::min(range_.end - begin, PageBytes())};
}

void ReadPiece::OnFault() {
  // A fault maps neighbours of its page, too.
  file_->UnmapBlocks(range_.begin, range_.end);
  const uint64_t begin = AlignDown(range_.begin, PageBytes());
  const std::optional<std::vector<ByteRange>> missing =
      file_->MissingRanges(begin, range_.end - begin);
  if (missing.has_value() && missing->empty()) return Finish(absl::OkStatus());
  if (missing.has_value() && fault_ == Fault::kFirstPage) return FaultIn(Fault::kLastPage);
  fault_ = Fault::kNone;
  Populate();
}

void ReadPiece::OnTrialResult(int64_t result) {
  if (trial_ == Trial::kFault && result >= 0) {
    trial_ = Trial::kLastPage;
    // Where the fault's block is on its way this waits for it; where it is not it reads one page.
    step_ = {.kind = PieceStep::Kind::kRead, .offset = range_.end - PageBytes(), .bytes = 1};
    return;
  }
  const bool failed = result < 0;
  trial_ = Trial::kNone;
  file_->UnmapBlocks(range_.begin, range_.end);
  const std::optional<uint64_t> resident = file_->ResidentBytes(range_.begin, range_.bytes());
  // Whatever failed, reading will say.
  if (failed || !resident.has_value()) return Begin(FillWay::kAdvice);
  const FillWay way = *resident > kFaultBlockBytes / 2 ? FillWay::kFaults : FillWay::kAdvice;
  file_->mount().Learn(way);
  Begin(way);
}

ReadPiece::Verification ReadPiece::VerificationFor(const ShardFile& file) {
  if (file.mapping().empty()) return Verification::kRead;
  return file.MissingRanges(0, 1).has_value() ? Verification::kMincore : Verification::kPopulate;
}

void ReadPiece::OnResult(int64_t result) {
  CHECK(!done());
  if ((result == -EINTR || result == -EAGAIN) && ++interruptions_ <= kInterruptionsMax &&
      step_.kind != PieceStep::Kind::kAdvise) {
    return;
  }
  if (trial_ != Trial::kNone) return OnTrialResult(result);
  switch (step_.kind) {
    case PieceStep::Kind::kAdvise:
      // Whatever came of it, the pages tell.
      Look();
      break;
    case PieceStep::Kind::kRead:
      OnReadResult(result);
      break;
    case PieceStep::Kind::kPopulate:
      OnPopulateResult(result);
      break;
    case PieceStep::Kind::kDone:
      break;
  }
}

void ReadPiece::Look() {
  if (verification_ == Verification::kPopulate) return Populate();
  std::optional<std::vector<ByteRange>> missing = file_->MissingRanges(
      AlignDown(range_.begin, PageBytes()), range_.end - AlignDown(range_.begin, PageBytes()));
  if (!missing.has_value()) return Populate();
  if (missing->empty()) return Finish(absl::OkStatus());
  // Pages that are read but not there afterwards are evicted at once, or are holes of a file in
  // memory, which exist only once they are mapped.
  if (fill_rounds_ >= kFillRoundsMax) return Populate();
  Fill(*std::move(missing));
}

void ReadPiece::Fill(std::vector<ByteRange> holes) {
  ++fill_rounds_;
  holes_ = std::move(holes);
  std::reverse(holes_.begin(), holes_.end());
  NextRead();
}

void ReadPiece::NextRead() {
  if (!holes_.empty()) {
    step_ = {.kind = PieceStep::Kind::kRead,
             .offset = holes_.back().begin,
             .bytes = std::min<uint64_t>(holes_.back().bytes(), kScratchBytes)};
    return;
  }
  switch (verification_) {
    case Verification::kMincore:
      return Look();
    case Verification::kPopulate:
      return Populate();
    case Verification::kRead:
      return Finish(absl::OkStatus());
  }
}

void ReadPiece::OnReadResult(int64_t result) {
  if (result < 0) {
    return Finish(ReadErrorStatus(*file_, step_.offset, static_cast<int>(-result)));
  }
  if (result == 0) {
    // The piece may begin beyond the new end.
    const absl::StatusOr<uint64_t> bytes = file_->CurrentBytes();
    return Finish(
        EndOfFileStatus(*file_, bytes.ok() ? std::min(*bytes, step_.offset) : step_.offset));
  }
  // A short read goes on where it stopped.
  holes_.back().begin += static_cast<uint64_t>(result);
  CHECK(holes_.back().begin <= holes_.back().end);
  if (holes_.back().begin == holes_.back().end) holes_.pop_back();
  NextRead();
}

void ReadPiece::Populate() {
  const uint64_t begin = AlignDown(range_.begin, PageBytes());
  step_ = {.kind = PieceStep::Kind::kPopulate, .offset = begin, .bytes = range_.end - begin};
}

void ReadPiece::OnPopulateResult(int64_t result) {
  if (result >= 0) return fault_ == Fault::kNone ? Finish(absl::OkStatus()) : OnFault();
  fault_ = Fault::kNone;
  // Populating says only that a page cannot be had; a read says why.
  if (fill_rounds_ == 0) return Fill({range_});
  const int error_number = static_cast<int>(-result);
  if (error_number == EINVAL && verification_ == Verification::kPopulate) {
    // A kernel before 5.14: that everything was read without an error is all that can be known.
    return Finish(absl::OkStatus());
  }
  if (error_number == EINVAL) {
    return Finish(absl::ResourceExhaustedError(
        absl::StrCat(file_->name(), " at offset ", range_.begin,
                     ": pages are evicted as fast as they are read; the daemon lacks memory")));
  }
  // EFAULT says no more than that a page cannot be had, although reads said nothing.
  Finish(absl::UnavailableError(
      ErrnoStatus(error_number,
                  absl::StrCat("populating pages of ", file_->name(), " at offset ", range_.begin))
          .message()));
}

void ReadPiece::Finish(absl::Status status) {
  status_ = std::move(status);
  step_ = {};
}

}  // namespace forestage
