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
    std::vector<std::byte> buffer(bytes);
    const UniqueFd fd = OpenForTest(directory_.File("shard"));
    ASSERT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);
    ASSERT_EQ(pread(fd.get(), buffer.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
  }

  static constexpr uint64_t kBytes = 1 * kMiB + 10;
  TemporaryDirectoryForTest directory_{kDiskForTest};
  std::unique_ptr<ShardFile> file_;
};

TEST_F(ReadPieceTest, AdvisesThenLooks) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
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
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
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
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
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
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
  piece.OnResult(1);
  piece.OnResult(0);
  ASSERT_TRUE(piece.done());
  EXPECT_THAT(piece.status(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("shard")));
}

TEST_F(ReadPieceTest, GoesOnAfterAnInterruption) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
  piece.OnResult(1);
  const PieceStep before = piece.step();
  piece.OnResult(-EINTR);
  EXPECT_EQ(piece.step().kind, before.kind);
  EXPECT_EQ(piece.step().offset, before.offset);
}

TEST_F(ReadPieceTest, PopulatesPagesThatReadsDoNotLeaveBehind) {
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
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
  ReadPiece piece(*file_, {.begin = 0, .end = kBytes});
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
  Warm(0, kBytes);
  MakeColdForTest(directory_.File("shard"), 8 * page, 4 * page);
  MakeColdForTest(directory_.File("shard"), 20 * page, 2 * page);
  const std::vector<ByteRange> missing = file_->MissingRanges(0, kBytes).value();
  ASSERT_FALSE(missing.empty());
  const ReadPlan plan = PlanRead({.file = file_.get(), .offset = 0, .bytes = kBytes, .tag = 0});
  uint64_t bytes = 0;
  for (const ByteRange& hole : missing) {
    bytes += hole.bytes();
    for (uint64_t at = hole.begin; at < hole.end; at += page) {
      EXPECT_TRUE(std::any_of(plan.pieces.begin(), plan.pieces.end(), [at](const ByteRange& piece) {
        return piece.begin <= at && at < piece.end;
      })) << at;
    }
  }
  EXPECT_EQ(plan.storage_bytes, bytes);
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    EXPECT_LE(plan.pieces[i].bytes(), file_->advice_bytes_max());
    EXPECT_LE(i > 0 ? plan.pieces[i - 1].end : 0, plan.pieces[i].begin);
  }
}

}  // namespace
}  // namespace forestage
