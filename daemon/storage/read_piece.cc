#include "daemon/storage/read_piece.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
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

// The ranges that lie in both, which are disjoint and in order.
std::vector<ByteRange> Intersect(const std::vector<ByteRange>& a, const std::vector<ByteRange>& b) {
  std::vector<ByteRange> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const ByteRange range = {.begin = std::max(a[i].begin, b[j].begin),
                             .end = std::min(a[i].end, b[j].end)};
    if (range.begin < range.end) common.push_back(range);
    ++(a[i].end < b[j].end ? i : j);
  }
  return common;
}

std::vector<ByteRange> RangesOf(const ReadRequest& request) {
  if (request.bytes == 0) return {};
  const std::vector<ByteRange> all = {
      {.begin = request.offset, .end = request.offset + request.bytes}};
  return request.ranges.empty() ? all : Intersect(request.ranges, all);
}

// Cuts what one range of a request misses.
class PieceCutter {
 public:
  PieceCutter(const ShardFile& file, const std::vector<ByteRange>& demanded, FillWay way)
      : file_(file), demanded_(demanded), way_(way) {}

  // `missing` lies in one range that is demanded.
  void Cut(const std::vector<ByteRange>& missing) {
    advised_from_ = pieces_.size();
    for (const ByteRange& range : missing) {
      for (uint64_t begin = range.begin; begin < range.end;) {
        const uint64_t block = AlignDown(begin, kFaultBlockBytes);
        const uint64_t end =
            way_ == FillWay::kAdvice ? range.end : std::min(range.end, block + kFaultBlockBytes);
        if (way_ != FillWay::kAdvice && MayFault(block)) {
          AddToBlock(block, {.begin = begin, .end = end});
        } else {
          Advise({.begin = begin, .end = end});
        }
        begin = end;
      }
    }
  }
  std::vector<ReadPlan::Piece> Take() { return std::move(pieces_); }

 private:
  // Whether all that the kernel reads for a fault in this block, and later because of it, is
  // demanded.
  bool MayFault(uint64_t block) const {
    const auto after =
        std::partition_point(demanded_.begin(), demanded_.end(),
                             [&](const ByteRange& range) { return range.begin <= block; });
    if (after == demanded_.begin()) return false;
    return (after - 1)->end >= std::min(file_.bytes(), block + ReachOfFault(file_));
  }

  void AddToBlock(uint64_t block, ByteRange range) {
    if (!pieces_.empty() && pieces_.back().way == way_ && pieces_.back().range.begin >= block) {
      pieces_.back().range.end = range.end;
    } else {
      pieces_.push_back({.range = range, .way = way_});
    }
    advised_from_ = pieces_.size();
  }

  // Pieces that begin and end with something missing. Pages between that are there cost an advice
  // nothing, one advice for each hole would.
  void Advise(ByteRange range) {
    const uint64_t piece_bytes = file_.advice_bytes_max();
    while (range.begin < range.end) {
      if (pieces_.size() > advised_from_ &&
          range.begin < pieces_.back().range.begin + piece_bytes) {
        const uint64_t limit = pieces_.back().range.begin + piece_bytes;
        pieces_.back().range.end = std::min(range.end, limit);
        range.begin = pieces_.back().range.end;
      } else {
        pieces_.push_back({.range = {.begin = range.begin, .end = range.begin}});
      }
    }
  }

  const ShardFile& file_;
  const std::vector<ByteRange>& demanded_;
  const FillWay way_;
  std::vector<ReadPlan::Piece> pieces_;
  // Pieces from here on are of advice, and of one range.
  size_t advised_from_ = 0;
};

std::vector<ReadPlan::Piece> CutMissing(const ReadRequest& request,
                                        const std::vector<ByteRange>& ranges,
                                        const std::vector<ByteRange>& missing, FillWay way) {
  PieceCutter cutter(*request.file, request.demanded.empty() ? ranges : request.demanded, way);
  for (const ByteRange& range : ranges) cutter.Cut(Intersect({range}, missing));
  return cutter.Take();
}

uint64_t BytesOf(const std::vector<ByteRange>& ranges) {
  uint64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.bytes();
  return bytes;
}

// Whether the first piece that could tell what a fault brings in is a block that is missing whole.
bool BeginsWithColdBlock(const std::vector<ReadPlan::Piece>& pieces,
                         const std::vector<ByteRange>& missing) {
  for (const ReadPlan::Piece& piece : pieces) {
    if (piece.way != FillWay::kUnknown) continue;
    return BytesOf(Intersect({piece.range}, missing)) == kFaultBlockBytes;
  }
  return false;
}

// Everything, in pieces of so many bytes.
std::vector<ReadPlan::Piece> CutWhole(const std::vector<ByteRange>& ranges, uint64_t piece_bytes) {
  std::vector<ReadPlan::Piece> pieces;
  for (const ByteRange& range : ranges) {
    for (uint64_t begin = range.begin; begin < range.end; begin += piece_bytes) {
      const uint64_t end = std::min(begin + piece_bytes, range.end);
      pieces.push_back({.range = {.begin = begin, .end = end}});
    }
  }
  return pieces;
}

}  // namespace

uint64_t ReachOfFault(const ShardFile& file) {
  // Of whichever window the kernel takes for a read, it looks for a missing page in the window
  // behind the mark.
  const uint64_t window =
      std::max(file.advice_bytes_max(), file.probe().mount.read_ahead.read_ahead_bytes.value_or(0));
  return std::max(kFaultBlockBytes, window + PageBytes());
}

ReadPlan PlanRead(const ReadRequest& request) {
  CHECK(request.file != nullptr);
  const ShardFile& file = *request.file;
  CHECK(request.offset % PageBytes() == 0 && request.offset <= file.bytes() &&
        request.bytes <= file.bytes() - request.offset);
  ReadPlan plan;
  const std::vector<ByteRange> ranges = RangesOf(request);
  if (ranges.empty()) return plan;
  const auto looks_cached = [&](const ByteRange& range) {
    return file.LooksCached(range.begin, range.bytes());
  };
  plan.all_cached = looks_cached({.begin = request.offset, .end = request.offset + request.bytes});
  if (plan.all_cached) return plan;
  if (!request.ranges.empty() && absl::c_all_of(ranges, looks_cached)) return plan;
  const uint64_t begin = ranges.front().begin;
  std::optional<std::vector<ByteRange>> missing =
      file.MissingRanges(begin, ranges.back().end - begin);
  if (!missing.has_value()) {
    plan.pieces =
        CutWhole(ranges, file.mapping().empty() ? kReadPieceBytes : file.advice_bytes_max());
    plan.storage_bytes = BytesOf(ranges);
    return plan;
  }
  *missing = Intersect(*missing, ranges);
  plan.storage_bytes = BytesOf(*missing);
  const FillWay way = file.mount().fill_way();
  plan.pieces = CutMissing(request, ranges, *missing, way);
  if (way == FillWay::kUnknown && !BeginsWithColdBlock(plan.pieces, *missing)) {
    plan.pieces = CutMissing(request, ranges, *missing, FillWay::kAdvice);
  }
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
      return SetPopulateStep(range_.begin, range_.begin + PageBytes());
    case FillWay::kFaults:
      return verification_ == Verification::kMincore ? FaultIn(Fault::kFirstPage) : Populate();
    case FillWay::kAdvice:
      step_ = {.kind = PieceStep::Kind::kAdvise,
               .offset = range_.begin,
               .bytes = range_.bytes(),
               .probe_offset = LastPage()};
      return;
  }
}

ReadPiece::~ReadPiece() {
  // The pages stay cached; our page tables need not hold them. A fault maps neighbours of its page,
  // too.
  if (mapped_) file_->UnmapBlocks(range_.begin, range_.end);
}

void ReadPiece::SetPopulateStep(uint64_t begin, uint64_t end) {
  mapped_ = true;
  step_ = {.kind = PieceStep::Kind::kPopulate, .offset = begin, .bytes = end - begin};
}

uint64_t ReadPiece::LastPage() const { return AlignDown(range_.end - 1, PageBytes()); }

void ReadPiece::FaultIn(Fault fault) {
  fault_ = fault;
  const uint64_t page =
      fault == Fault::kFirstPage ? AlignDown(range_.begin, PageBytes()) : LastPage();
  SetPopulateStep(page, std::min(range_.end, page + PageBytes()));
}

void ReadPiece::OnFault() {
  // Most blocks of small pages are still on their way: not worth a look at each page.
  if (fault_ == Fault::kFirstPage &&
      file_->ResidentBytes(LastPage(), range_.end - LastPage()) == uint64_t{0}) {
    return FaultIn(Fault::kLastPage);
  }
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
    step_ = {.kind = PieceStep::Kind::kRead, .offset = LastPage(), .bytes = 1};
    return;
  }
  const bool failed = result < 0;
  trial_ = Trial::kNone;
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

void ReadPiece::Populate() { SetPopulateStep(AlignDown(range_.begin, PageBytes()), range_.end); }

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
