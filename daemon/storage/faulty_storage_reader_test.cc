#include "daemon/storage/faulty_storage_reader.h"

#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"

#include "common/errno_status.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/thread_pool_storage_reader.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FaultyStorageReaderTest : public ::testing::Test {
 protected:
  FaultyStorageReaderTest() {
    WriteFileForTest(directory_.File("shard"), PatternForTest(1 * kMiB));
    MakeColdForTest(directory_.File("shard"));
    auto file = ShardFile::Open("shard", OpenForTest(directory_.File("shard")));
    EXPECT_OK(file);
    file_ = *std::move(file);
    reader_ = std::make_unique<FaultyStorageReader>(*ThreadPoolStorageReader::Create(2), faults_);
  }
  void Start(uint64_t tag, uint64_t offset = 0, uint64_t bytes = 1 * kMiB) {
    reader_->Start({.file = file_.get(), .offset = offset, .bytes = bytes, .tag = tag});
  }
  ReadResult WaitForOne() {
    while (true) {
      const std::vector<ReadResult> results = reader_->Wait(absl::InfiniteFuture());
      if (results.empty()) continue;
      EXPECT_EQ(results.size(), 1u);
      return results[0];
    }
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
  ReadFaults faults_;
  std::unique_ptr<ShardFile> file_;
  std::unique_ptr<FaultyStorageReader> reader_;
};

TEST_F(FaultyStorageReaderTest, FailsTheRangeItWasToldToAsOftenAsItWasToldTo) {
  faults_.Add({.file_name = "shard",
               .begin = 512 * kKiB,
               .end = 512 * kKiB + 1,
               .kind = ReadFault::Kind::kErrno,
               .error_number = ESTALE,
               .times = 1});
  Start(1, 0, 512 * kKiB);
  EXPECT_OK(WaitForOne().status);
  Start(2);
  const ReadResult failed = WaitForOne();
  EXPECT_EQ(failed.tag, 2u);
  EXPECT_THAT(failed.status, StatusIs(absl::StatusCode::kUnavailable,
                                      AllOf(HasSubstr("shard"), HasSubstr("524288"))));
  EXPECT_EQ(ErrnoOf(failed.status), ESTALE);
  Start(3);
  EXPECT_OK(WaitForOne().status);
  EXPECT_EQ(faults_.requests_begun(), 3u);
}

TEST_F(FaultyStorageReaderTest, LeavesOtherFilesAlone) {
  faults_.Add({.file_name = "other", .kind = ReadFault::Kind::kErrno, .error_number = EIO});
  Start(1);
  EXPECT_OK(WaitForOne().status);
}

TEST_F(FaultyStorageReaderTest, EndsTheFileWhereItWasToldTo) {
  faults_.Add({.file_name = "shard", .begin = 4096, .kind = ReadFault::Kind::kEndOfFile});
  Start(1);
  EXPECT_THAT(WaitForOne().status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("4096")));
}

TEST_F(FaultyStorageReaderTest, ServesAShortReadInTwoAndCountsAll) {
  const uint64_t before = file_->ResidentBytes(0, file_->bytes()).value();
  faults_.Add({.file_name = "shard", .kind = ReadFault::Kind::kShort});
  Start(1);
  EXPECT_EQ(reader_->in_flight(), 1u);
  const ReadResult result = WaitForOne();
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, file_->bytes() - before);
  EXPECT_EQ(file_->ResidentBytes(0, file_->bytes()), file_->bytes());
  EXPECT_EQ(reader_->in_flight(), 0u);
}

TEST_F(FaultyStorageReaderTest, HoldsUntilReleased) {
  faults_.Add({.file_name = "shard", .kind = ReadFault::Kind::kHold});
  Start(1);
  EXPECT_THAT(reader_->Wait(absl::InfinitePast()), IsEmpty());
  EXPECT_EQ(reader_->in_flight(), 1u);
  EXPECT_EQ(faults_.requests_held(), 1u);
  std::thread releaser([this] { faults_.Release(); });
  EXPECT_OK(WaitForOne().status);
  releaser.join();
  EXPECT_EQ(faults_.requests_held(), 0u);
}

TEST_F(FaultyStorageReaderTest, LetsGoOfWhatItHoldsWhenCancelled) {
  faults_.Add({.file_name = "shard", .kind = ReadFault::Kind::kHold});
  Start(1);
  reader_->Cancel();
  EXPECT_THAT(WaitForOne().status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("shard")));
}

TEST_F(FaultyStorageReaderTest, ADeafDeviceIsNotMovedByCancel) {
  faults_.Add({.file_name = "shard", .kind = ReadFault::Kind::kDeaf});
  Start(1);
  reader_->Cancel();
  EXPECT_THAT(reader_->Wait(absl::InfiniteFuture()), IsEmpty());
  EXPECT_EQ(reader_->in_flight(), 1u);
  faults_.Release();
  EXPECT_OK(WaitForOne().status);
}

}  // namespace
}  // namespace forestage
