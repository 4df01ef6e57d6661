// Staging from real files: store, checkpoint, lanes and readers together.
#include "daemon/staging/striped_checkpoint_store.h"

#include <cerrno>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/vfs.h>

#include "common/file_system_magic.h"
#include "common/memfd.h"
#include "common/staging_board.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/limits.h"
#include "daemon/staging/checkpoint_files_for_test.h"
#include "daemon/storage/faulty_storage_reader.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/read_faults.h"
#include "daemon/storage/reader_selection.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kExtent = 256 * kKiB;
// More than any of this takes; a wait that reaches it fails its test.
constexpr absl::Duration kPatience = absl::Seconds(60);

class CountingObserver : public StagingObserver {
 public:
  void OnExtentRead(ReadCause cause, uint64_t storage_bytes, absl::Duration) override {
    absl::MutexLock lock(&mutex_);
    (cause == ReadCause::kStage ? staged_ : demanded_) += 1;
    storage_bytes_ += storage_bytes;
  }
  void OnReadError(const absl::Status&) override {
    absl::MutexLock lock(&mutex_);
    ++errors_;
  }
  int staged() const {
    absl::MutexLock lock(&mutex_);
    return staged_;
  }
  int demanded() const {
    absl::MutexLock lock(&mutex_);
    return demanded_;
  }
  int errors() const {
    absl::MutexLock lock(&mutex_);
    return errors_;
  }
  uint64_t storage_bytes() const {
    absl::MutexLock lock(&mutex_);
    return storage_bytes_;
  }

 private:
  mutable absl::Mutex mutex_;
  int staged_ ABSL_GUARDED_BY(mutex_) = 0;
  int demanded_ ABSL_GUARDED_BY(mutex_) = 0;
  int errors_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t storage_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StripedCheckpointStoreTest : public ::testing::TestWithParam<ReaderChoice> {
 protected:
  StripedCheckpointStoreTest() {
    auto selection = SelectReader(GetParam());
    EXPECT_OK(selection);
    inner_ = *selection;
    MakeStore(kFuseMagic, kReadAheadHoldMax);
  }

  // Files of such file systems are not read ahead while ranks open, for so long at most.
  void MakeStore(uint32_t held_file_system, absl::Duration hold_max) {
    ReaderSelection faulty = inner_;
    faulty.make_reader = [this]() -> absl::StatusOr<std::unique_ptr<StorageReader>> {
      auto reader = inner_.make_reader();
      if (!reader.ok()) return reader.status();
      return std::make_unique<FaultyStorageReader>(*std::move(reader), faults_);
    };
    auto store = StripedCheckpointStore::Create({.extent_bytes = kExtent,
                                                 .lanes_max = 4,
                                                 .in_flight_bytes_max = 4 * kExtent,
                                                 .node_in_flight_bytes_max = 8 * kExtent,
                                                 .observer = &observer_,
                                                 .held_file_system = held_file_system,
                                                 .hold_max = hold_max,
                                                 .reader = std::move(faulty)});
    EXPECT_OK(store);
    store_ = *std::move(store);
  }
  uint32_t FileSystem() {
    struct statfs file_system = {};
    EXPECT_EQ(statfs(directory_.path().c_str(), &file_system), 0);
    return static_cast<uint32_t>(file_system.f_type);
  }

  absl::StatusOr<std::shared_ptr<StagedCheckpoint>> Acquire(absl::Span<const std::string> names,
                                                            size_t lane_count = 2) {
    return store_->Acquire(directory_.path(), OpenShardsForTest(directory_, names), lane_count);
  }
  std::shared_ptr<StagedCheckpoint> MustAcquire(absl::Span<const std::string> names,
                                                size_t lane_count = 2) {
    auto checkpoint = Acquire(names, lane_count);
    EXPECT_OK(checkpoint);
    return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
  }
  static std::unique_ptr<StagingBoardView> BoardOf(const StagedCheckpoint& checkpoint) {
    auto view = StagingBoardView::Map(UniqueFd(dup(checkpoint.board_fd())));
    EXPECT_OK(view);
    return *std::move(view);
  }
  static ExtentState WaitFor(const StagingBoardView& board, uint64_t extent) {
    return board.WaitFor(extent, absl::Now() + kPatience);
  }
  static void WaitForAll(const StagingBoardView& board) {
    for (uint64_t i = 0; i < board.extent_count(); ++i) {
      EXPECT_EQ(WaitFor(board, i), ExtentState::kResident) << i;
    }
  }
  uint64_t ResidentBytesOf(const std::string& name) {
    auto file = ShardFile::Open(name, OpenForTest(directory_.File(name)));
    EXPECT_OK(file);
    return (*file)->ResidentBytes(0, (*file)->bytes()).value();
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
  ReadFaults faults_;
  CountingObserver observer_;
  ReaderSelection inner_;
  // Last: lanes use the faults and the observer.
  std::unique_ptr<StripedCheckpointStore> store_;
};

TEST_P(StripedCheckpointStoreTest, StagesEverythingOnce) {
  const auto names = WriteCheckpointForTest(directory_, 3, 4, kExtent + 100);
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  EXPECT_FALSE(checkpoint->progress().complete);
  EXPECT_EQ(checkpoint->progress().bytes_per_second, 0);
  EXPECT_EQ(checkpoint->progress().time_left, std::nullopt);
  checkpoint->AddDemandForEverything(1);
  checkpoint->AddDemandForEverything(2);
  WaitForAll(*board);
  const StagingProgress progress = checkpoint->progress();
  EXPECT_TRUE(progress.complete);
  EXPECT_GT(progress.bytes_per_second, 0);
  EXPECT_EQ(progress.time_left, absl::ZeroDuration());
  EXPECT_EQ(progress.wanted_bytes, checkpoint->catalog().total_bytes());
  EXPECT_EQ(progress.resident_bytes, progress.wanted_bytes);
  EXPECT_EQ(progress.failed_bytes, 0u);
  EXPECT_LE(progress.read_bytes, progress.wanted_bytes);
  EXPECT_GT(progress.read_bytes, progress.wanted_bytes / 2);
  EXPECT_GT(progress.staging_seconds, 0);
  EXPECT_EQ(faults_.requests_begun(), board->extent_count());
  EXPECT_EQ(observer_.staged(), static_cast<int>(board->extent_count()));
  EXPECT_EQ(observer_.storage_bytes(), progress.read_bytes);
  EXPECT_THAT(checkpoint->read_errors(), IsEmpty());
  for (const auto& shard : OpenShardsForTest(directory_, names)) {
    EXPECT_EQ(ResidentBytesOf(shard.name), shard.size_bytes);
  }
}

TEST_P(StripedCheckpointStoreTest, ReadsNothingOfAWarmCheckpoint) {
  const auto names = WriteCheckpointForTest(directory_, 1, 4, kExtent);
  {
    const auto first = MustAcquire(names);
    first->AddDemandForEverything(1);
    WaitForAll(*BoardOf(*first));
  }
  const auto again = MustAcquire(names);
  again->AddDemandForEverything(1);
  WaitForAll(*BoardOf(*again));
  EXPECT_EQ(again->progress().read_bytes, 0u);
}

TEST_P(StripedCheckpointStoreTest, StagesOnlyWhatIsDemanded) {
  const auto names = WriteCheckpointForTest(directory_, 1, 4, 4 * kExtent);
  const auto checkpoint = MustAcquire(names);
  const std::optional<size_t> tensor = checkpoint->catalog().Find("t0.2");
  ASSERT_TRUE(tensor.has_value());
  const DemandItem part = {
      .tensor_index = static_cast<uint32_t>(*tensor), .begin = kExtent, .end = kExtent + 1};
  ASSERT_OK(checkpoint->AddDemand(1, {&part, 1}));
  const TensorEntryView entry = checkpoint->catalog().tensor(*tensor);
  const auto [first, last] =
      checkpoint->extents().Covering(0, entry.begin + kExtent, entry.begin + kExtent + 1);
  ASSERT_EQ(first + 1, last);
  const auto board = BoardOf(*checkpoint);
  EXPECT_EQ(WaitFor(*board, first), ExtentState::kResident);
  EXPECT_TRUE(checkpoint->progress().complete);
  EXPECT_EQ(checkpoint->progress().wanted_bytes, PageBytes());
  EXPECT_EQ(checkpoint->progress().read_bytes, PageBytes());
  EXPECT_EQ(faults_.requests_begun(), 1u);
  EXPECT_EQ(board->state(0), ExtentState::kAbsent);
}

TEST_P(StripedCheckpointStoreTest, AResidentExtentIsResidentNoMoreWhenMoreOfItIsDemanded) {
  const auto names = WriteCheckpointForTest(directory_, 1, 4, 4 * kExtent);
  const auto checkpoint = MustAcquire(names);
  const DemandItem part = {.tensor_index = 1, .begin = 0, .end = 1};
  ASSERT_OK(checkpoint->AddDemand(1, {&part, 1}));
  const TensorEntryView entry = checkpoint->catalog().tensor(1);
  const uint64_t extent = checkpoint->extents().Covering(0, entry.begin, entry.begin + 1).first;
  const auto board = BoardOf(*checkpoint);
  ASSERT_EQ(WaitFor(*board, extent), ExtentState::kResident);
  faults_.Add({.file_name = names[0], .end = UINT64_MAX, .kind = ReadFault::Kind::kHold});
  ASSERT_OK(checkpoint->AddDemand(2, {DemandItem{.tensor_index = 1, .begin = 0, .end = 8 * kKiB}}));
  EXPECT_NE(board->state(extent), ExtentState::kResident);
  faults_.WaitUntilHeld(1);
  EXPECT_EQ(checkpoint->progress().resident_bytes, PageBytes());
  faults_.Release();
  EXPECT_EQ(WaitFor(*board, extent), ExtentState::kResident);
  EXPECT_EQ(checkpoint->progress().resident_bytes, checkpoint->progress().wanted_bytes);
  EXPECT_EQ(checkpoint->progress().read_bytes, checkpoint->progress().wanted_bytes);
}

TEST_P(StripedCheckpointStoreTest, RefusesADemandOutsideTheCatalogWhole) {
  const auto names = WriteCheckpointForTest(directory_, 1, 2, kExtent);
  const auto checkpoint = MustAcquire(names);
  EXPECT_THAT(
      checkpoint->AddDemand(1, {DemandItem{.tensor_index = 0}, DemandItem{.tensor_index = 2}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 tensors")));
  EXPECT_THAT(
      checkpoint->AddDemand(1, {DemandItem{.tensor_index = 0, .begin = 0, .end = kExtent + 1}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("t0.0")));
  EXPECT_THAT(checkpoint->AddDemand(1, {DemandItem{.tensor_index = 0, .begin = 2, .end = 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("t0.0")));
  EXPECT_EQ(checkpoint->progress().wanted_bytes, 0u);
}

TEST_P(StripedCheckpointStoreTest, AnUrgentExtentOvertakesTheQueue) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 16 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kHold, .times = 1});
  const auto checkpoint = MustAcquire(names, 1);
  const auto board = BoardOf(*checkpoint);
  // One read is held; the rest of the lane's budget goes to three more, and then it takes in turn.
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kHold, .times = 3});
  checkpoint->AddDemandForEverything(1);
  faults_.WaitUntilHeld(4);
  checkpoint->AddUrgent(1, {15, 99});
  // Queued, or taken at once: what is urgent may go a little beyond the budget.
  EXPECT_THAT(board->state(15), AnyOf(ExtentState::kQueued, ExtentState::kReading));
  faults_.Release();
  EXPECT_EQ(WaitFor(*board, 15), ExtentState::kResident);
  WaitForAll(*board);
  EXPECT_EQ(observer_.demanded(), 1);
}

TEST_P(StripedCheckpointStoreTest, WhileRanksOpenOnlyWhatIsUrgentIsReadOfStorageServedHere) {
  MakeStore(FileSystem(), absl::InfiniteDuration());
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 16 * kExtent);
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  checkpoint->HoldReadAhead(2);
  checkpoint->AddDemandForEverything(1);
  checkpoint->AddUrgent(1, {5, 3});
  EXPECT_EQ(WaitFor(*board, 5), ExtentState::kResident);
  EXPECT_EQ(WaitFor(*board, 3), ExtentState::kResident);
  EXPECT_EQ(faults_.requests_begun(), 2u);
  // The other one has what it came for.
  checkpoint->HoldReadAhead(3);
  checkpoint->ReleaseReadAhead(2);
  checkpoint->AddUrgent(1, {9});
  EXPECT_EQ(WaitFor(*board, 9), ExtentState::kResident);
  EXPECT_EQ(faults_.requests_begun(), 3u);
  // It has gone.
  checkpoint->RemoveSession(3);
  WaitForAll(*board);
  EXPECT_EQ(faults_.requests_begun(), board->extent_count());
}

TEST_P(StripedCheckpointStoreTest, ReadsOnThoughARankThatOpensNeverGetsAnything) {
  MakeStore(FileSystem(), absl::Milliseconds(1));
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 4 * kExtent);
  const auto checkpoint = MustAcquire(names);
  checkpoint->HoldReadAhead(2);
  checkpoint->AddDemandForEverything(1);
  WaitForAll(*BoardOf(*checkpoint));
}

TEST_P(StripedCheckpointStoreTest, ReadsAheadWhileRanksOpenWhereStorageIsNotServedHere) {
  MakeStore(kFuseMagic, absl::InfiniteDuration());
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 4 * kExtent);
  const auto checkpoint = MustAcquire(names);
  checkpoint->HoldReadAhead(2);
  checkpoint->AddDemandForEverything(1);
  WaitForAll(*BoardOf(*checkpoint));
}

TEST_P(StripedCheckpointStoreTest, AFailedExtentIsToldAndCanBeDemandedAgain) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 4 * kExtent);
  faults_.Add({.file_name = "shard-0",
               .begin = kExtent,
               .end = kExtent + 1,
               .kind = ReadFault::Kind::kErrno,
               .error_number = EIO});
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  checkpoint->AddDemandForEverything(1);
  EXPECT_EQ(WaitFor(*board, 1), ExtentState::kFailed);
  EXPECT_EQ(WaitFor(*board, 0), ExtentState::kResident);
  for (uint64_t i = 2; i < board->extent_count(); ++i) {
    EXPECT_EQ(WaitFor(*board, i), ExtentState::kResident);
  }
  EXPECT_THAT(checkpoint->read_errors(),
              ElementsAre(AllOf(HasSubstr("shard-0"), HasSubstr("262144"), HasSubstr("EIO"))));
  EXPECT_EQ(checkpoint->progress().failed_bytes, kExtent);
  EXPECT_TRUE(checkpoint->progress().complete);
  EXPECT_EQ(observer_.errors(), 1);
  faults_.Release();
  checkpoint->AddUrgent(1, {1});
  EXPECT_EQ(WaitFor(*board, 1), ExtentState::kResident);
  EXPECT_EQ(checkpoint->progress().failed_bytes, 0u);
  EXPECT_TRUE(checkpoint->progress().complete);
}

TEST_P(StripedCheckpointStoreTest, KeepsABoundedNumberOfErrors) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 50 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kErrno, .error_number = ESTALE});
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  checkpoint->AddDemandForEverything(1);
  for (uint64_t i = 0; i < board->extent_count(); ++i) {
    EXPECT_EQ(WaitFor(*board, i), ExtentState::kFailed);
  }
  const std::vector<std::string> errors = checkpoint->read_errors();
  ASSERT_THAT(errors, SizeIs(kReadErrorsKept + 1));
  EXPECT_THAT(errors.back(), AllOf(HasSubstr(" more"), HasSubstr("in 1 file")));
  EXPECT_EQ(checkpoint->progress().failed_bytes, checkpoint->progress().wanted_bytes);
}

TEST_P(StripedCheckpointStoreTest, AFileThatChangesWhileItIsStagedFails) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 2 * kExtent);
  const auto checkpoint = MustAcquire(names);
  {
    const UniqueFd fd = OpenForTest(directory_.File("shard-0"), O_WRONLY);
    ASSERT_EQ(pwrite(fd.get(), "x", 1, 1000), 1);
    ASSERT_EQ(fsync(fd.get()), 0);
  }
  checkpoint->AddDemandForEverything(1);
  EXPECT_EQ(WaitFor(*BoardOf(*checkpoint), 0), ExtentState::kFailed);
  EXPECT_THAT(checkpoint->read_errors().at(0), HasSubstr("changed"));
}

TEST_P(StripedCheckpointStoreTest, AFileThatIsDeletedOrGivenOtherRightsIsStagedAllTheSame) {
  const auto names = WriteCheckpointForTest(directory_, 2, 1, 2 * kExtent);
  const auto checkpoint = MustAcquire(names);
  ASSERT_EQ(unlink(directory_.File("shard-0").c_str()), 0);
  ASSERT_EQ(chmod(directory_.File("shard-1").c_str(), 0600), 0);
  checkpoint->AddDemandForEverything(1);
  const auto board = BoardOf(*checkpoint);
  for (uint64_t i = 0; i < board->extent_count(); ++i) {
    EXPECT_EQ(WaitFor(*board, i), ExtentState::kResident) << i;
  }
  EXPECT_THAT(checkpoint->read_errors(), IsEmpty());
}

TEST_P(StripedCheckpointStoreTest, WhatTheLastSessionLeavesBehindIsNotRead) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 32 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kHold});
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  checkpoint->AddDemandForEverything(1);
  const DemandItem last = {.tensor_index = 0, .begin = 31 * kExtent, .end = 32 * kExtent};
  ASSERT_OK(checkpoint->AddDemand(2, {&last, 1}));
  faults_.WaitUntilHeld(4);
  checkpoint->RemoveSession(1);
  EXPECT_EQ(board->state(20), ExtentState::kAbsent);
  faults_.Release();
  EXPECT_EQ(WaitFor(*board, board->extent_count() - 1), ExtentState::kResident);
  EXPECT_EQ(WaitFor(*board, board->extent_count() - 2), ExtentState::kResident);
  EXPECT_LE(faults_.requests_begun(), 6u);
  EXPECT_EQ(board->state(20), ExtentState::kAbsent);
}

TEST_P(StripedCheckpointStoreTest, NeverHasMoreInFlightThanItsBudget) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 32 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kHold});
  const auto checkpoint = MustAcquire(names, 4);
  checkpoint->AddDemandForEverything(1);
  faults_.WaitUntilHeld(4);
  EXPECT_EQ(faults_.requests_begun(), 4u);
  faults_.Release();
  WaitForAll(*BoardOf(*checkpoint));
  EXPECT_EQ(faults_.requests_begun(), checkpoint->extents().extent_count());
}

TEST_P(StripedCheckpointStoreTest, StopInTheMiddleClosesTheBoard) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 16 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kHold});
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  checkpoint->AddDemandForEverything(1);
  faults_.WaitUntilHeld(4);
  EXPECT_FALSE(board->daemon_gone());
  checkpoint->Stop();
  EXPECT_TRUE(board->daemon_gone());
  EXPECT_NE(WaitFor(*board, 0), ExtentState::kResident);
  EXPECT_FALSE(checkpoint->progress().complete);
}

TEST_P(StripedCheckpointStoreTest, ACheckpointMayGoWithReadsInFlight) {
  const auto names = WriteCheckpointForTest(directory_, 2, 1, 16 * kExtent);
  auto checkpoint = MustAcquire(names);
  checkpoint->AddDemandForEverything(1);
  faults_.WaitUntilBegun(1);
  checkpoint.reset();
  EXPECT_THAT(store_->List(), IsEmpty());
}

TEST_P(StripedCheckpointStoreTest, ADeviceThatDoesNotAnswerDoesNotHoldUpTheEnd) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 8 * kExtent);
  faults_.Add({.file_name = "shard-0", .kind = ReadFault::Kind::kDeaf});
  auto checkpoint = MustAcquire(names);
  checkpoint->AddDemandForEverything(1);
  faults_.WaitUntilHeld(4);
  checkpoint.reset();
  EXPECT_EQ(faults_.requests_held(), 4u);
  // The lanes that were left behind end when the device answers.
  faults_.Release();
  faults_.WaitUntilUnused();
  EXPECT_EQ(observer_.staged(), 0);
}

TEST_P(StripedCheckpointStoreTest, EqualFilesAreOneCheckpointWhileItIsHeld) {
  const auto names = WriteCheckpointForTest(directory_, 2, 1, kExtent);
  auto first = MustAcquire(names);
  auto second = MustAcquire(names);
  EXPECT_EQ(first, second);
  EXPECT_THAT(store_->List(), ElementsAre(first));
  const uint64_t generation = BoardOf(*first)->generation();
  first.reset();
  second.reset();
  EXPECT_THAT(store_->List(), IsEmpty());
  const auto third = MustAcquire(names);
  EXPECT_EQ(BoardOf(*third)->generation(), generation);
}

TEST_P(StripedCheckpointStoreTest, OtherFilesNamesOrOrderAreAnotherCheckpoint) {
  const auto names = WriteCheckpointForTest(directory_, 2, 1, kExtent);
  const auto both = MustAcquire(names);
  const auto one = MustAcquire({names[0]});
  const auto reversed = MustAcquire({names[1], names[0]});
  EXPECT_NE(both, one);
  EXPECT_NE(both, reversed);
  std::vector<ReceivedShard> renamed = OpenShardsForTest(directory_, names);
  renamed[0].name = "other";
  auto other = store_->Acquire("x", std::move(renamed), 1);
  ASSERT_OK(other);
  EXPECT_NE(both, *other);
}

TEST_P(StripedCheckpointStoreTest, SessionsThatComeAtOnceShareOneCheckpoint) {
  const auto names = WriteCheckpointForTest(directory_, 8, 1, kExtent);
  std::vector<std::shared_ptr<StagedCheckpoint>> acquired(8);
  std::vector<std::thread> sessions;
  for (auto& checkpoint : acquired) {
    sessions.emplace_back([&] { checkpoint = MustAcquire(names); });
  }
  for (std::thread& session : sessions) session.join();
  EXPECT_EQ(std::set(acquired.begin(), acquired.end()).size(), 1u);
}

TEST_P(StripedCheckpointStoreTest, NamesEveryDamagedShardAtOnce) {
  const auto names = WriteCheckpointForTest(directory_, 3, 1, kExtent);
  WriteFileForTest(directory_.File("shard-0"), PatternForTest(1000));
  WriteFileForTest(directory_.File("shard-2"), {});
  EXPECT_THAT(Acquire(names), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr("shard-0"), HasSubstr("shard-2"),
                                             ::testing::Not(HasSubstr("shard-1")))));
  EXPECT_THAT(store_->List(), IsEmpty());
}

TEST_P(StripedCheckpointStoreTest, HoldsNoMoreHeadersThanItHasMemoryFor) {
  std::vector<std::string> names;
  for (const char* name : {"one", "two", "three"}) {
    std::vector<std::byte> file = SafetensorsForTest({{name, 10}});
    // Blanks behind the text: three headers and their extents just fit into one user's part.
    const uint64_t text_bytes = file.size() - 8 - 10;
    const uint64_t header_bytes = 511 * kKiB;
    file.insert(file.begin() + static_cast<std::ptrdiff_t>(8 + text_bytes),
                header_bytes - text_bytes, std::byte{' '});
    std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
    WriteFileForTest(directory_.File(name), file);
    names.push_back(name);
  }
  ASSERT_OK_AND_ASSIGN(
      const auto store,
      StripedCheckpointStore::Create(
          {.extent_bytes = kExtent, .header_bytes_max = 2 * kMiB, .reader = inner_}));
  const auto acquire = [&](absl::Span<const std::string> shards, uid_t uid) {
    std::vector<ReceivedShard> sent = OpenShardsForTest(directory_, shards);
    for (ReceivedShard& shard : sent) shard.uid = uid;
    return store->Acquire("x", std::move(sent), 1);
  };
  // One user has three quarters of it, for all that he holds, and others have theirs.
  auto first = acquire({names[0]}, 7);
  ASSERT_OK(first);
  auto two = acquire({names[1], names[2]}, 7);
  ASSERT_OK(two);
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             AllOf(HasSubstr("uid 7"), HasSubstr("bytes of headers")));
  EXPECT_THAT(acquire({names[2]}, 7), full);
  ASSERT_OK(acquire({names[2]}, 8));
  // What is held already costs nothing more.
  EXPECT_OK(acquire({names[0]}, 7));
  two->reset();
  EXPECT_OK(acquire({names[2]}, 7));
  // A checkpoint that is refused in the middle leaves nothing behind.
  EXPECT_THAT(acquire({names[0], names[1], names[2]}, 7), full);
  EXPECT_OK(acquire({names[1], names[2]}, 7));
}

TEST_P(StripedCheckpointStoreTest, CataloguesATensorThatTwoShardsHoldOnceForEach) {
  WriteFileForTest(directory_.File("a"), SafetensorsForTest({{"twice", 10}}));
  WriteFileForTest(directory_.File("b"), SafetensorsForTest({{"twice", 10}}));
  const auto checkpoint = MustAcquire({"a", "b"});
  // Which one is meant the index says, which only ranks read.
  EXPECT_EQ(checkpoint->catalog().tensor_count(), 2u);
  EXPECT_TRUE(checkpoint->catalog().has_repeated_names());
}

TEST_P(StripedCheckpointStoreTest, RefusesAFileThatChangedSinceItWasAnnounced) {
  const auto names = WriteCheckpointForTest(directory_, 2, 1, kExtent);
  std::vector<ReceivedShard> shards = OpenShardsForTest(directory_, names);
  shards[1].size_bytes += 1;
  EXPECT_THAT(store_->Acquire("x", std::move(shards), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard-1")));
  shards = OpenShardsForTest(directory_, names);
  shards[0].mtime_ns += 1;
  EXPECT_THAT(store_->Acquire("x", std::move(shards), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard-0")));
}

TEST_P(StripedCheckpointStoreTest, RefusesAHeldCheckpointToWhoCannotReadItsFiles) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, kExtent);
  const auto held = MustAcquire(names);
  std::vector<ReceivedShard> shards = OpenShardsForTest(directory_, names);
  // An open that needs no right to read.
  shards[0].fd = OpenForTest(directory_.File(names[0]), O_PATH);
  EXPECT_THAT(store_->Acquire("x", std::move(shards), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not open for reading")));
}

TEST_P(StripedCheckpointStoreTest, RefusesAnEmptyList) {
  EXPECT_THAT(store_->Acquire("/models/x", {}, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/models/x")));
}

TEST_P(StripedCheckpointStoreTest, StopEndsAllAndRefusesMore) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, kExtent);
  const auto checkpoint = MustAcquire(names);
  const auto board = BoardOf(*checkpoint);
  store_->Stop();
  EXPECT_TRUE(board->daemon_gone());
  EXPECT_THAT(Acquire(names), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stopping")));
}

TEST_P(StripedCheckpointStoreTest, DeliversACatalogThatRanksCanMap) {
  const auto names = WriteCheckpointForTest(directory_, 2, 3, 1000);
  const auto checkpoint = MustAcquire(names);
  EXPECT_OK(CheckSealed(checkpoint->catalog_fd(), /*unwritable=*/true));
  auto identity = CacheIdentityOf(checkpoint->catalog_fd());
  ASSERT_OK(identity);
  auto mapping = FileMapping::MapReadOnly(checkpoint->catalog_fd(), identity->bytes);
  ASSERT_OK(mapping);
  auto view = CatalogView::FromBytes(mapping->bytes());
  ASSERT_OK(view);
  EXPECT_EQ(view->tensor_count(), 6u);
  EXPECT_TRUE(view->Find("t1.2").has_value());
}

TEST_P(StripedCheckpointStoreTest, KeepsTheHeartbeatOfItsBoards) {
  const auto names = WriteCheckpointForTest(directory_, 1, 1, 1000);
  const auto checkpoint = MustAcquire(names);
  auto mapping = FileMapping::MapReadOnly(checkpoint->board_fd(), sizeof(BoardHeader));
  ASSERT_OK(mapping);
  const auto* header = reinterpret_cast<const BoardHeader*>(mapping->bytes().data());
  const int64_t first = header->heartbeat_ns.load();
  const absl::Time give_up = absl::Now() + kPatience;
  while (header->heartbeat_ns.load() == first && absl::Now() < give_up) std::this_thread::yield();
  EXPECT_GT(header->heartbeat_ns.load(), first);
}

TEST_P(StripedCheckpointStoreTest, SaysHowItReads) {
  EXPECT_EQ(store_->reader_name(), GetParam() == ReaderChoice::kUring ? "io_uring" : "threads");
  EXPECT_THAT(store_->reader_reason(), HasSubstr("configuration"));
}

INSTANTIATE_TEST_SUITE_P(Readers, StripedCheckpointStoreTest,
                         ::testing::Values(ReaderChoice::kUring, ReaderChoice::kThreads),
                         [](const auto& parameters) {
                           return parameters.param == ReaderChoice::kUring ? "Uring" : "Threads";
                         });

}  // namespace
}  // namespace forestage
