// What every StorageReader promises, held against all of them with real files.
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/limits.h"
#include "daemon/storage/faulty_storage_reader.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/read_faults.h"
#include "daemon/storage/shard_file.h"
#include "daemon/storage/storage_reader.h"
#include "daemon/storage/thread_pool_storage_reader.h"
#include "daemon/storage/uring_storage_reader.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<StorageReader> MakeUring(ReadFaults&) {
  auto reader = UringStorageReader::Create();
  // Where io_uring is refused its conformance cannot be shown: an error, not a silent skip.
  EXPECT_OK(reader);
  return reader.ok() ? *std::move(reader) : nullptr;
}
std::unique_ptr<StorageReader> MakeThreads(ReadFaults&) {
  return *ThreadPoolStorageReader::Create(4);
}
std::unique_ptr<StorageReader> MakeFaultyUring(ReadFaults& faults) {
  return std::make_unique<FaultyStorageReader>(MakeUring(faults), faults);
}
std::unique_ptr<StorageReader> MakeFaultyThreads(ReadFaults& faults) {
  return std::make_unique<FaultyStorageReader>(MakeThreads(faults), faults);
}

struct ReaderCase {
  const char* name;
  std::unique_ptr<StorageReader> (*make)(ReadFaults& faults);
};

class StorageReaderConformanceTest : public ::testing::TestWithParam<ReaderCase> {
 protected:
  StorageReaderConformanceTest() : reader_(GetParam().make(faults_)) {}

  // A file of this many bytes, its pages dropped.
  std::unique_ptr<ShardFile> ColdFile(uint64_t bytes, const std::string& name = "shard") {
    WriteFileForTest(directory_.File(name), PatternForTest(bytes));
    MakeColdForTest(directory_.File(name));
    return Open(directory_.File(name));
  }
  std::unique_ptr<ShardFile> Open(const std::string& path) {
    auto file = ShardFile::Open("shard", OpenForTest(path));
    EXPECT_OK(file);
    return *std::move(file);
  }
  ReadResult ReadOne(const ShardFile& file, uint64_t offset, uint64_t bytes,
                     std::vector<ByteRange> ranges = {}) {
    reader_->Start(
        {.file = &file, .offset = offset, .bytes = bytes, .tag = 7, .ranges = std::move(ranges)});
    while (true) {
      const std::vector<ReadResult> results = reader_->Wait(absl::InfiniteFuture());
      if (results.empty()) continue;
      EXPECT_EQ(results.size(), 1u);
      EXPECT_EQ(results[0].tag, 7u);
      EXPECT_EQ(reader_->in_flight(), 0u);
      return results[0];
    }
  }

  ReadFaults faults_;
  TemporaryDirectoryForTest directory_{kDiskForTest};
  std::unique_ptr<StorageReader> reader_;
};

TEST_P(StorageReaderConformanceTest, BringsAColdFileIntoThePageCache) {
  const auto file = ColdFile(20 * kMiB);
  const uint64_t before = file->ResidentBytes(0, file->bytes()).value();
  ASSERT_LT(before, file->bytes());
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, file->bytes() - before);
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
}

TEST_P(StorageReaderConformanceTest, ReadsNothingOfAWarmFile) {
  const auto file = ColdFile(3 * kMiB);
  EXPECT_OK(ReadOne(*file, 0, file->bytes()).status);
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, 0u);
  EXPECT_EQ(result.all_cached, file->LooksCached(0, file->bytes()));
}

TEST_P(StorageReaderConformanceTest, SaysWhetherMoreIsCachedThanWasAskedFor) {
  const auto file = ColdFile(4 * kMiB);
  const std::vector<ByteRange> first = {{.begin = 0, .end = PageBytes()}};
  WarmForTest(directory_.File("shard"), 0, PageBytes());
  const ReadResult some = ReadOne(*file, 0, file->bytes(), first);
  EXPECT_OK(some.status);
  EXPECT_FALSE(some.all_cached);
  WarmForTest(directory_.File("shard"), 0, file->bytes());
  const ReadResult all = ReadOne(*file, 0, file->bytes(), first);
  EXPECT_OK(all.status);
  EXPECT_EQ(all.all_cached, file->LooksCached(0, file->bytes()));
}

TEST_P(StorageReaderConformanceTest, ReadsOnlyTheHolesOfAHalfWarmFile) {
  const auto file = ColdFile(4 * kMiB);
  // By reads without read-ahead: of a huge page no part can be dropped.
  for (uint64_t offset = 64 * kKiB; offset < file->bytes(); offset += 512 * kKiB) {
    WarmForTest(directory_.File("shard"), offset, 448 * kKiB);
  }
  const uint64_t before = file->ResidentBytes(0, file->bytes()).value();
  ASSERT_LT(before, file->bytes());
  ASSERT_GT(before, file->bytes() / 2);
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, file->bytes() - before);
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
}

TEST_P(StorageReaderConformanceTest, BringsBackABlockThatWasDropped) {
  const auto file = ColdFile(8 * kMiB);
  EXPECT_OK(ReadOne(*file, 0, file->bytes()).status);
  MakeColdForTest(directory_.File("shard"), 2 * kMiB, 2 * kMiB);
  const uint64_t before = file->ResidentBytes(0, file->bytes()).value();
  ASSERT_LT(before, file->bytes());
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, file->bytes() - before);
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
}

TEST_P(StorageReaderConformanceTest, ReadsATailThatEndsInsideAPage) {
  const auto file = ColdFile(1 * kMiB + 123);
  const ReadResult result = ReadOne(*file, 1 * kMiB, 123);
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, 123u);
  EXPECT_EQ(file->ResidentBytes(1 * kMiB, 123), 123u);
}

TEST_P(StorageReaderConformanceTest, ReadsNothingOfZeroBytes) {
  const auto empty = ColdFile(0);
  const ReadResult of_empty = ReadOne(*empty, 0, 0);
  EXPECT_OK(of_empty.status);
  EXPECT_EQ(of_empty.storage_bytes, 0u);
  const auto file = ColdFile(2 * kMiB, "other");
  const ReadResult of_none = ReadOne(*file, 1 * kMiB, 0);
  EXPECT_OK(of_none.status);
  EXPECT_EQ(of_none.storage_bytes, 0u);
}

TEST_P(StorageReaderConformanceTest, SaysThatATruncatedFileEndsInsideTheRange) {
  const auto file = ColdFile(4 * kMiB);
  ASSERT_EQ(truncate(directory_.File("shard").c_str(), 1 * kMiB), 0);
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("shard")));
  EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("1048576")));
}

TEST_P(StorageReaderConformanceTest, SaysThatAWarmFileWasCutInsideItsLastPage) {
  const auto file = ColdFile(10000);
  EXPECT_OK(ReadOne(*file, 0, file->bytes()).status);
  ASSERT_EQ(truncate(directory_.File("shard").c_str(), 9000), 0);
  EXPECT_THAT(ReadOne(*file, 0, file->bytes()).status,
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("9000")));
}

TEST_P(StorageReaderConformanceTest, ServesAFileInMemory) {
  TemporaryDirectoryForTest memory("/dev/shm");
  WriteFileForTest(memory.File("shard"), PatternForTest(1 * kMiB + 5));
  const auto file = Open(memory.File("shard"));
  const ReadResult result = ReadOne(*file, 0, file->bytes());
  EXPECT_OK(result.status);
  EXPECT_EQ(result.storage_bytes, 0u);
}

TEST_P(StorageReaderConformanceTest, ServesAFileInMemoryWithHoles) {
  TemporaryDirectoryForTest memory("/dev/shm");
  WriteFileForTest(memory.File("shard"), PatternForTest(5));
  ASSERT_EQ(truncate(memory.File("shard").c_str(), 1 * kMiB), 0);
  const auto file = Open(memory.File("shard"));
  EXPECT_OK(ReadOne(*file, 0, file->bytes()).status);
}

TEST_P(StorageReaderConformanceTest, ServesManyRequestsAtOnce) {
  const auto file = ColdFile(32 * kMiB);
  const uint64_t before = file->ResidentBytes(0, file->bytes()).value();
  const size_t count = reader_->in_flight_max();
  const uint64_t bytes = file->bytes() / count;
  std::vector<uint64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const uint32_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  for (const uint64_t index : order) {
    reader_->Start({.file = file.get(), .offset = index * bytes, .bytes = bytes, .tag = index});
  }
  EXPECT_EQ(reader_->in_flight(), count);
  std::map<uint64_t, int> seen;
  uint64_t storage_bytes = 0;
  while (seen.size() < count) {
    for (const ReadResult& result : reader_->Wait(absl::InfiniteFuture())) {
      EXPECT_OK(result.status);
      ++seen[result.tag];
      storage_bytes += result.storage_bytes;
    }
  }
  for (const auto& [tag, times] : seen) EXPECT_EQ(times, 1) << tag;
  // Read-ahead may bring in a neighbour's pages before its request looks.
  EXPECT_LE(storage_bytes, file->bytes() - before);
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
  EXPECT_EQ(reader_->in_flight(), 0u);
}

TEST_P(StorageReaderConformanceTest, WaitReturnsAtItsDeadline) {
  EXPECT_TRUE(reader_->Wait(absl::InfinitePast()).empty());
  EXPECT_TRUE(reader_->Wait(absl::Now() + absl::Milliseconds(1)).empty());
}

TEST_P(StorageReaderConformanceTest, WakeEndsTheNextWait) {
  reader_->Wake();
  // Would never return, were the wake-up lost.
  EXPECT_TRUE(reader_->Wait(absl::InfiniteFuture()).empty());
}

TEST_P(StorageReaderConformanceTest, WakeEndsAWaitThatBlocks) {
  for (int i = 0; i < 50; ++i) {
    std::thread waker([this] { reader_->Wake(); });
    EXPECT_TRUE(reader_->Wait(absl::InfiniteFuture()).empty());
    waker.join();
  }
}

TEST_P(StorageReaderConformanceTest, CancelEndsWhatIsInFlight) {
  const auto file = ColdFile(64 * kMiB);
  const size_t count = 32;
  const uint64_t bytes = file->bytes() / count;
  for (uint64_t i = 0; i < count; ++i) {
    reader_->Start({.file = file.get(), .offset = i * bytes, .bytes = bytes, .tag = i});
  }
  std::thread canceller([this] { reader_->Cancel(); });
  size_t ended = 0;
  while (ended < count) {
    for (const ReadResult& result : reader_->Wait(absl::InfiniteFuture())) {
      ++ended;
      if (result.status.ok()) {
        EXPECT_EQ(file->ResidentBytes(result.tag * bytes, bytes), bytes);
      } else {
        EXPECT_THAT(result.status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("shard")));
      }
    }
  }
  canceller.join();
  EXPECT_EQ(reader_->in_flight(), 0u);
}

TEST_P(StorageReaderConformanceTest, ReadsAfterACancel) {
  const auto file = ColdFile(1 * kMiB);
  reader_->Cancel();
  (void)reader_->Wait(absl::InfinitePast());
  (void)reader_->Wait(absl::InfinitePast());
  EXPECT_OK(ReadOne(*file, 0, file->bytes()).status);
}

TEST_P(StorageReaderConformanceTest, MayGoWithReadsInFlight) {
  const auto file = ColdFile(32 * kMiB);
  for (uint64_t i = 0; i < 4; ++i) {
    reader_->Start({.file = file.get(), .offset = i * 8 * kMiB, .bytes = 8 * kMiB, .tag = i});
  }
  reader_.reset();
}

INSTANTIATE_TEST_SUITE_P(Readers, StorageReaderConformanceTest,
                         ::testing::Values(ReaderCase{"Uring", &MakeUring},
                                           ReaderCase{"Threads", &MakeThreads},
                                           ReaderCase{"FaultyUring", &MakeFaultyUring},
                                           ReaderCase{"FaultyThreads", &MakeFaultyThreads}),
                         [](const auto& parameters) { return parameters.param.name; });

}  // namespace
}  // namespace forestage
