#include "daemon/storage/read_piece.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "common/errno_status.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/limits.h"
#include "daemon/storage/files_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Kind = PieceStep::Kind;

class ReadPieceTest : public ::testing::Test {
 protected:
  // A cold file of 1 MiB and 10 bytes.
  ReadPieceTest() {
    WriteFileForTest(directory_.File("shard"), PatternForTest(kBytes));
    MakeColdForTest(directory_.File("shard"));
    auto file = ShardFile::Open("shard", OpenForTest(directory_.File("shard")));
    EXPECT_OK(file);
    file_ = *std::move(file);
  }
  void Warm(uint64_t offset, uint64_t bytes) {
    WarmForTest(directory_.File("shard"), offset, bytes);
  }

  static constexpr uint64_t kBytes = 1 * kMiB + 10;
  TemporaryDirectoryForTest directory_{kDiskForTest};
  std::unique_ptr<ShardFile> file_;
};

TEST_F(ReadPieceTest, AdvisesThenLooks) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  EXPECT_EQ(piece.step().kind, Kind::kAdvise);
  EXPECT_EQ(piece.step().offset, 0u);
  EXPECT_EQ(piece.step().bytes, kBytes);
  EXPECT_EQ(piece.step().probe_offset, 1 * kMiB);
  Warm(0, kBytes);
  piece.OnResult(1);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTest, ReadsWhatTheAdviceDidNotBring) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  Warm(0, 512 * kKiB);
  const std::vector<ByteRange> holes = file_->MissingRanges(0, kBytes).value();
  ASSERT_FALSE(holes.empty());
  // The advice was cut and its error swallowed.
  piece.OnResult(-EIO);
  ASSERT_EQ(piece.step().kind, Kind::kRead);
  EXPECT_EQ(piece.step().offset, holes[0].begin);
  EXPECT_EQ(piece.step().bytes, kScratchBytes);
  // A short read goes on where it stopped.
  piece.OnResult(4096);
  EXPECT_EQ(piece.step().offset, holes[0].begin + 4096);
  Warm(512 * kKiB, kBytes - 512 * kKiB);
  while (!piece.done()) {
    ASSERT_EQ(piece.step().kind, Kind::kRead);
    piece.OnResult(static_cast<int64_t>(piece.step().bytes));
  }
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTest, TheErrorOfTheReadIsTheErrorOfThePiece) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  piece.OnResult(1);
  ASSERT_EQ(piece.step().kind, Kind::kRead);
  piece.OnResult(4096);
  piece.OnResult(-EIO);
  ASSERT_TRUE(piece.done());
  EXPECT_THAT(piece.status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("shard"), HasSubstr("4096"), HasSubstr("EIO"))));
  EXPECT_EQ(ErrnoOf(piece.status()), EIO);
}

TEST_F(ReadPieceTest, TheEndOfTheFileIsAnErrorOfItsOwn) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  piece.OnResult(1);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_THAT(piece.status(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("shard")));
}

TEST_F(ReadPieceTest, GoesOnAfterAnInterruption) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  piece.OnResult(1);
  const PieceStep before = piece.step();
  piece.OnResult(-EINTR);
  EXPECT_EQ(piece.step().kind, before.kind);
  EXPECT_EQ(piece.step().offset, before.offset);
}

TEST_F(ReadPieceTest, PopulatesPagesThatReadsDoNotLeaveBehind) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  piece.OnResult(1);
  // Everything read is evicted at once: the rounds are bounded.
  int reads = 0;
  while (piece.step().kind == Kind::kRead) {
    piece.OnResult(static_cast<int64_t>(piece.step().bytes));
    ASSERT_LT(++reads, 1000);
  }
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  EXPECT_EQ(piece.step().bytes, kBytes);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTest, SaysSoWhenPopulatingFailsToo) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes}, FillWay::kAdvice);
  piece.OnResult(1);
  while (piece.step().kind == Kind::kRead) {
    piece.OnResult(static_cast<int64_t>(piece.step().bytes));
  }
  piece.OnResult(-EFAULT);
  ASSERT_TRUE(piece.done());
  EXPECT_THAT(piece.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("EFAULT")));
}

TEST_F(ReadPieceTest, APlanCoversWhatIsMissingInPiecesThatTheMountTakes) {
  const uint64_t page = PageBytes();
  Warm(0, 8 * page);
  Warm(12 * page, 8 * page);
  Warm(22 * page, kBytes - 22 * page);
  const std::vector<ByteRange> missing = file_->MissingRanges(0, kBytes).value();
  ASSERT_FALSE(missing.empty());
  const ReadPlan plan = PlanRead({.file = file_.get(), .offset = 0, .bytes = kBytes, .tag = 0});
  uint64_t bytes = 0;
  for (const ByteRange& hole : missing) {
    bytes += hole.bytes();
    for (uint64_t at = hole.begin; at < hole.end; at += page) {
      EXPECT_TRUE(std::any_of(plan.pieces.begin(), plan.pieces.end(),
                              [at](const ReadPlan::Piece& piece) {
                                return piece.range.begin <= at && at < piece.range.end;
                              }))
          << at;
    }
  }
  EXPECT_EQ(plan.storage_bytes, bytes);
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    EXPECT_LE(plan.pieces[i].range.bytes(), file_->advice_bytes_max());
    EXPECT_LE(i > 0 ? plan.pieces[i - 1].range.end : 0, plan.pieces[i].range.begin);
  }
}

// A cold file of two blocks and a bit.
class ReadPieceTrialTest : public ::testing::Test {
 protected:
  ReadPieceTrialTest() {
    WriteFileForTest(directory_.File("shard"), PatternForTest(kBytes));
    MakeColdForTest(directory_.File("shard"));
    auto file = ShardFile::Open("shard", OpenForTest(directory_.File("shard")));
    EXPECT_OK(file);
    file_ = *std::move(file);
    // Whatever tests before this one in this process have learned.
    file_->mount().Learn(FillWay::kUnknown);
  }
  ReadPlan Plan() const {
    return PlanRead({.file = file_.get(), .offset = 0, .bytes = kBytes, .tag = 0});
  }
  // What a kernel without huge faults does, and one with them.
  void FaultBringsIn(ReadPiece& piece, uint64_t bytes) {
    ASSERT_EQ(piece.step().kind, Kind::kPopulate);
    ASSERT_EQ(piece.step().offset, 0u);
    ASSERT_EQ(piece.step().bytes, PageBytes());
    WarmForTest(directory_.File("shard"), 0, bytes);
    piece.OnResult(0);
    ASSERT_EQ(piece.step().kind, Kind::kRead);
    ASSERT_EQ(piece.step().offset, kFaultBlockBytes - PageBytes());
    ASSERT_EQ(piece.step().bytes, 1u);
    WarmForTest(directory_.File("shard"), kFaultBlockBytes - PageBytes(), PageBytes());
    piece.OnResult(1);
  }

  static constexpr uint64_t kBytes = 2 * kFaultBlockBytes + 10;
  static constexpr ByteRange kBlock = {.begin = 0, .end = kFaultBlockBytes};
  TemporaryDirectoryForTest directory_{kDiskForTest};
  std::unique_ptr<ShardFile> file_;
};

TEST_F(ReadPieceTrialTest, TheFirstBlockOfAMountShowsThatFaultsBringInWholeBlocks) {
  const ReadPlan plan = Plan();
  ASSERT_EQ(plan.pieces[0], (ReadPlan::Piece{.range = kBlock, .way = FillWay::kUnknown}));
  ReadPiece piece(*file_, kBlock, FillWay::kUnknown);
  FaultBringsIn(piece, kFaultBlockBytes);
  EXPECT_EQ(file_->mount().fill_way(), FillWay::kFaults);
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTrialTest, TheFirstBlockOfAMountShowsThatFaultsBringInSinglePages) {
  ReadPiece piece(*file_, kBlock, FillWay::kUnknown);
  FaultBringsIn(piece, PageBytes());
  EXPECT_EQ(file_->mount().fill_way(), FillWay::kAdvice);
  EXPECT_EQ(piece.step().kind, Kind::kAdvise);
  EXPECT_EQ(piece.step().bytes, kFaultBlockBytes);
}

TEST_F(ReadPieceTrialTest, AFaultThatFailsSaysNothingOfTheMount) {
  ReadPiece piece(*file_, kBlock, FillWay::kUnknown);
  piece.OnResult(-EFAULT);
  EXPECT_EQ(file_->mount().fill_way(), FillWay::kUnknown);
  EXPECT_EQ(piece.step().kind, Kind::kAdvise);
}

TEST_F(ReadPieceTrialTest, ABlockThatIsPartlyCachedSaysNothingOfTheMount) {
  WarmForTest(directory_.File("shard"), 64 * kKiB, 64 * kKiB);
  for (const ReadPlan::Piece& piece : Plan().pieces) EXPECT_EQ(piece.way, FillWay::kAdvice);
  EXPECT_EQ(ReadPiece(*file_, kBlock, FillWay::kUnknown).step().kind, Kind::kAdvise);
}

TEST_F(ReadPieceTrialTest, AFaultThatFailsIsFollowedByAReadWhoseErrorIsTheErrorOfThePiece) {
  file_->mount().Learn(FillWay::kFaults);
  ReadPiece piece(*file_, Plan().pieces[1].range, Plan().pieces[1].way);
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  piece.OnResult(-EFAULT);
  ASSERT_EQ(piece.step().kind, Kind::kRead);
  EXPECT_EQ(piece.step().offset, kFaultBlockBytes);
  piece.OnResult(-EIO);
  ASSERT_TRUE(piece.done());
  EXPECT_EQ(ErrnoOf(piece.status()), EIO);
}

TEST_F(ReadPieceTrialTest, ABlockThatIsThereAfterTheFaultOfItsFirstPageIsDone) {
  file_->mount().Learn(FillWay::kFaults);
  ReadPiece piece(*file_, kBlock, FillWay::kFaults);
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  EXPECT_EQ(piece.step().offset, 0u);
  EXPECT_EQ(piece.step().bytes, PageBytes());
  WarmForTest(directory_.File("shard"), 0, kFaultBlockBytes);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTrialTest, ABlockThatIsStillOnItsWayIsWaitedForAtItsLastPage) {
  const ByteRange end = {.begin = 2 * kFaultBlockBytes - 3 * PageBytes(), .end = kBytes};
  ReadPiece piece(*file_, end, FillWay::kFaults);
  WarmForTest(directory_.File("shard"), end.begin, PageBytes());
  piece.OnResult(0);
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  EXPECT_EQ(piece.step().offset, 2 * kFaultBlockBytes);
  EXPECT_EQ(piece.step().bytes, 10u);
  WarmForTest(directory_.File("shard"), end.begin, end.bytes());
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTrialTest, ABlockThatCameInPartIsPopulatedAsAWhole) {
  ReadPiece piece(*file_, kBlock, FillWay::kFaults);
  WarmForTest(directory_.File("shard"), 0, PageBytes());
  piece.OnResult(0);
  WarmForTest(directory_.File("shard"), kFaultBlockBytes - PageBytes(), PageBytes());
  piece.OnResult(0);
  ASSERT_EQ(piece.step().kind, Kind::kPopulate);
  EXPECT_EQ(piece.step().offset, 0u);
  EXPECT_EQ(piece.step().bytes, kFaultBlockBytes);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_OK(piece.status());
}

TEST_F(ReadPieceTrialTest, ALastPageThatCannotBeHadIsFollowedByReads) {
  ReadPiece piece(*file_, kBlock, FillWay::kFaults);
  piece.OnResult(0);
  piece.OnResult(-EFAULT);
  ASSERT_EQ(piece.step().kind, Kind::kRead);
  EXPECT_EQ(piece.step().offset, 0u);
  piece.OnResult(-EIO);
  ASSERT_TRUE(piece.done());
  EXPECT_EQ(ErrnoOf(piece.status()), EIO);
}

TEST_F(ReadPieceTrialTest, APlanForFaultsHasOnePieceABlock) {
  file_->mount().Learn(FillWay::kFaults);
  WarmForTest(directory_.File("shard"), 64 * kKiB, 64 * kKiB);
  const ReadPlan plan = Plan();
  EXPECT_EQ(plan.storage_bytes, kBytes - 64 * kKiB);
  EXPECT_EQ(plan.pieces,
            (std::vector<ReadPlan::Piece>{
                {.range = kBlock, .way = FillWay::kFaults},
                {.range = {kFaultBlockBytes, 2 * kFaultBlockBytes}, .way = FillWay::kFaults},
                {.range = {2 * kFaultBlockBytes, kBytes}, .way = FillWay::kFaults}}));
}

}  // namespace
}  // namespace forestage
