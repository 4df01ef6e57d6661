// Each extent of a checkpoint failed in each way that a device can: what happens to it, and that
// nothing happens to the others.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/staging_board.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/staging/checkpoint_files_for_test.h"
#include "daemon/staging/striped_checkpoint_store.h"
#include "daemon/storage/faulty_storage_reader.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/read_faults.h"
#include "daemon/storage/reader_selection.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kExtent = 256 * kKiB;
constexpr size_t kShards = 2;
constexpr size_t kExtentsPerShard = 4;
constexpr absl::Duration kPatience = absl::Seconds(60);

struct Failure {
  ReadFault::Kind kind = ReadFault::Kind::kErrno;
  int error_number = 0;
  // Part of the error's text; empty where the extent is resident in the end.
  std::string said;
};

std::vector<Failure> Failures() {
  using Kind = ReadFault::Kind;
  return {{Kind::kErrno, EIO, "EIO"},
          {Kind::kErrno, ESTALE, "ESTALE"},
          {Kind::kErrno, ENOMEM, "ENOMEM"},
          {Kind::kErrno, EINTR, "EINTR"},
          {Kind::kErrno, EAGAIN, "EAGAIN"},
          {Kind::kEndOfFile, 0, "the file ends there"},
          {Kind::kShort, 0, ""},
          {Kind::kHold, 0, ""}};
}

// One point of the walk: an extent, by its number on the board and its place.
struct Point {
  uint64_t extent = 0;
  std::string file_name;
  uint64_t begin = 0;
};

class StorageFaultWalkTest : public ::testing::TestWithParam<ReaderChoice> {
 protected:
  StorageFaultWalkTest() {
    auto selection = SelectReader(GetParam());
    EXPECT_OK(selection);
    ReaderSelection faulty = *selection;
    faulty.make_reader =
        [this, inner = selection->make_reader]() -> absl::StatusOr<std::unique_ptr<StorageReader>> {
      auto reader = inner();
      if (!reader.ok()) return reader.status();
      return std::make_unique<FaultyStorageReader>(*std::move(reader), faults_);
    };
    auto store = StripedCheckpointStore::Create({.extent_bytes = kExtent,
                                                 .lanes_max = 4,
                                                 .in_flight_bytes_max = 4 * kExtent,
                                                 .reader = std::move(faulty)});
    EXPECT_OK(store);
    store_ = *std::move(store);
    // A shard is its tensors and a header of less than an extent.
    names_ = WriteCheckpointForTest(directory_, kShards, 1, (kExtentsPerShard - 1) * kExtent);
  }

  std::vector<Point> Points() const {
    std::vector<Point> points;
    for (const std::string& name : names_) {
      for (uint64_t i = 0; i < kExtentsPerShard; ++i) {
        points.push_back({.extent = points.size(), .file_name = name, .begin = i * kExtent});
      }
    }
    return points;
  }

  // Stages everything while reads at the point fail.
  void Walk(const Point& point, const Failure& failure) {
    faults_.Add({.file_name = point.file_name,
                 .begin = point.begin,
                 .end = point.begin + 1,
                 .kind = failure.kind,
                 .error_number = failure.error_number});
    const auto checkpoint =
        store_->Acquire(directory_.path(), OpenShardsForTest(directory_, names_), 2);
    ASSERT_OK(checkpoint);
    auto board = StagingBoardView::Map(UniqueFd(dup((*checkpoint)->board_fd())));
    ASSERT_OK(board);
    ASSERT_EQ((*board)->extent_count(), kShards * kExtentsPerShard);
    (*checkpoint)->AddDemandForEverything(1);
    for (uint64_t i = 0; i < (*board)->extent_count(); ++i) {
      if (i == point.extent) continue;
      ASSERT_EQ((*board)->WaitFor(i, absl::Now() + kPatience), ExtentState::kResident) << i;
    }
    if (failure.kind == ReadFault::Kind::kHold) {
      faults_.WaitUntilHeld(1);
      EXPECT_NE((*board)->state(point.extent), ExtentState::kResident);
      faults_.Release();
    }
    EXPECT_EQ((*board)->WaitFor(point.extent, absl::Now() + kPatience),
              failure.said.empty() ? ExtentState::kResident : ExtentState::kFailed);
    if (failure.said.empty()) {
      EXPECT_THAT((*checkpoint)->read_errors(), IsEmpty());
    } else {
      EXPECT_THAT((*checkpoint)->read_errors(),
                  AllOf(SizeIs(1), Each(AllOf(HasSubstr(point.file_name), HasSubstr(failure.said),
                                              HasSubstr(absl::StrCat("offset ", point.begin))))));
    }
    faults_.Release();
    ++walked_;
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
  ReadFaults faults_;
  std::vector<std::string> names_;
  size_t walked_ = 0;
  // Last: lanes use the faults.
  std::unique_ptr<StripedCheckpointStore> store_;
};

TEST_P(StorageFaultWalkTest, EachExtentFailsByItselfAndInItsOwnWay) {
  for (const Failure& failure : Failures()) {
    for (const Point& point : Points()) {
      SCOPED_TRACE(absl::StrCat(point.file_name, " at ", point.begin, ": ", failure.said, " kind ",
                                static_cast<int>(failure.kind)));
      Walk(point, failure);
    }
  }
  EXPECT_EQ(walked_, 8 * kShards * kExtentsPerShard);
  std::printf("%zu points x %zu kinds of failure walked\n", Points().size(), Failures().size());
}

INSTANTIATE_TEST_SUITE_P(Readers, StorageFaultWalkTest,
                         ::testing::Values(ReaderChoice::kUring, ReaderChoice::kThreads),
                         [](const auto& parameters) {
                           return parameters.param == ReaderChoice::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace forestage
