#include "client/src/block_filler.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/src/checkpoint_for_test.h"
#include "client/src/shard_reader.h"
#include "gtest/gtest.h"
#include <sys/stat.h>

#include "common/cached_bytes.h"
#include "common/status_matchers.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

constexpr uint64_t kBlock = BlockFiller::kBlockBytes;
// A little more than some whole blocks, so that the last one is not whole.
constexpr uint64_t kTensorBytes = 8 * kBlock + 123'457;
constexpr absl::Duration kPatience = absl::Minutes(1);

class BlockFillerTest : public ::testing::Test {
 protected:
  BlockFillerTest() {
    WriteShard(path(), {{"t", "U8", {kTensorBytes}, RandomBytes(kTensorBytes, 3)}});
    const UniqueFd fd(open(path().c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(fsync(fd.get()), 0);
    EXPECT_EQ(posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    absl::StatusOr<std::shared_ptr<const CheckpointFiles>> files =
        CheckpointFiles::Open(directory_.path(), {});
    EXPECT_OK(files);
    files_ = *std::move(files);
    EXPECT_EQ(Cached(0, bytes()), 0);
  }

  std::string path() const { return directory_.File("model.safetensors"); }
  const OpenShard& shard() const { return files_->shards()[0]; }
  uint64_t bytes() const { return shard().bytes; }
  uint64_t Cached(uint64_t begin, uint64_t end) const {
    const absl::StatusOr<uint64_t> cached = CachedBytes(shard().fd.get(), begin, end);
    EXPECT_OK(cached);
    return cached.value_or(0);
  }
  // Whether so much of the range comes into memory without anybody reading it.
  bool Comes(uint64_t begin, uint64_t end) const {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Cached(begin, end) < end - begin) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  BlockFiller::Options Wanting(std::vector<ReadAhead::Part> parts) const {
    return {.files = files_,
            .wanted = std::move(parts),
            .data_begins = {0},
            .others_want_the_rest = false,
            .threads_max = 4};
  }
  BlockFiller::Options WantingEverything() const {
    return {.files = files_,
            .wanted = std::nullopt,
            .data_begins = {},
            .others_want_the_rest = false,
            .threads_max = 4};
  }

  const TemporaryDirectoryForTest directory_{kDiskForTest};
  std::shared_ptr<const CheckpointFiles> files_;
};

TEST_F(BlockFillerTest, WhatIsAskedForComesIntoMemory) {
  BlockFiller filler(WantingEverything());
  filler.Ask({.shard_index = 0, .begin = 1000, .end = 5 * kBlock});
  EXPECT_TRUE(Comes(1000, 5 * kBlock));
  filler.Ask({.shard_index = 0, .begin = 5 * kBlock, .end = bytes()});
  EXPECT_TRUE(Comes(5 * kBlock, bytes()));
}

TEST_F(BlockFillerTest, WhatIsNotAskedForDoesNot) {
  {
    BlockFiller filler(WantingEverything());
    filler.Ask({.shard_index = 0, .begin = kBlock, .end = 3 * kBlock});
    EXPECT_TRUE(Comes(kBlock, 3 * kBlock));
  }
  EXPECT_EQ(Cached(0, kBlock), 0);
  EXPECT_EQ(Cached(3 * kBlock, bytes()), 0);
}

TEST_F(BlockFillerTest, OfABlockThatIsWantedInPartTheRestIsNotRead) {
  const ReadAhead::Part few = {.shard_index = 0, .begin = 2 * kBlock, .end = 2 * kBlock + 4096};
  const ReadAhead::Part half = {.shard_index = 0, .begin = 4 * kBlock, .end = 4 * kBlock + 65536};
  {
    BlockFiller filler(Wanting({half, few}));
    filler.Ask(few);
    filler.Ask(half);
    EXPECT_TRUE(Comes(few.begin, few.end));
    EXPECT_TRUE(Comes(half.begin, half.end));
  }
  EXPECT_EQ(Cached(0, bytes()), (few.end - few.begin) + (half.end - half.begin));
}

TEST_F(BlockFillerTest, PartsThatTouchMakeAWholeBlock) {
  // In any order, and overlapping.
  BlockFiller filler(Wanting({{.shard_index = 0, .begin = kBlock + 5000, .end = 2 * kBlock},
                              {.shard_index = 0, .begin = kBlock, .end = kBlock + 9000}}));
  filler.Ask({.shard_index = 0, .begin = kBlock, .end = kBlock + 4096});
  if (filler.UsesFaults(0)) {
    EXPECT_TRUE(Comes(kBlock, 2 * kBlock));
  } else {
    EXPECT_TRUE(Comes(kBlock, kBlock + 4096));
  }
  EXPECT_EQ(Cached(2 * kBlock, bytes()), 0);
}

TEST_F(BlockFillerTest, BlocksThatOthersShareAreReadWhole) {
  BlockFiller::Options options =
      Wanting({{.shard_index = 0, .begin = 2 * kBlock, .end = 2 * kBlock + 4096}});
  options.others_want_the_rest = true;
  BlockFiller filler(std::move(options));
  filler.Ask({.shard_index = 0, .begin = 2 * kBlock, .end = 2 * kBlock + 4096});
  EXPECT_TRUE(Comes(2 * kBlock, 2 * kBlock + (filler.UsesFaults(0) ? kBlock : 4096)));
}

TEST_F(BlockFillerTest, WhoReadsAfterBringingInReadsNothingBeyondIt) {
  BlockFiller filler(WantingEverything());
  filler.Ask({.shard_index = 0, .begin = kBlock, .end = 2 * kBlock});
  // A mount on which faults bring in no blocks is read as ever.
  if (!filler.UsesFaults(0)) return;
  filler.BringIn(0, kBlock, 4 * kBlock);
  EXPECT_EQ(Cached(kBlock, 4 * kBlock), 3 * kBlock);
  EXPECT_EQ(Cached(4 * kBlock, bytes()), 0);
}

TEST_F(BlockFillerTest, WhatIsInMemoryStartsNothing) {
  std::vector<std::byte> all(bytes());
  ASSERT_OK(ReadExactly(shard(), 0, absl::MakeSpan(all)));
  BlockFiller filler(WantingEverything());
  filler.Ask({.shard_index = 0, .begin = 0, .end = bytes()});
  EXPECT_FALSE(filler.UsesFaults(0));
}

TEST_F(BlockFillerTest, AFileThatBecameShorterHarmsNobody) {
  BlockFiller filler(WantingEverything());
  ASSERT_EQ(truncate(path().c_str(), 3 * kBlock + 10), 0);
  filler.Ask({.shard_index = 0, .begin = 0, .end = bytes()});
  filler.BringIn(0, 2 * kBlock, bytes());
  EXPECT_TRUE(Comes(0, 3 * kBlock));
}

TEST_F(BlockFillerTest, EndsWithWorkLeftToDo) {
  BlockFiller filler(WantingEverything());
  filler.Ask({.shard_index = 0, .begin = 0, .end = bytes()});
  filler.Stop();
  filler.Ask({.shard_index = 0, .begin = 0, .end = bytes()});
}

TEST_F(BlockFillerTest, ServesManyThreads) {
  BlockFiller filler(WantingEverything());
  std::vector<std::thread> threads;
  std::atomic<uint64_t> next = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (uint64_t begin = next++ * 100'000; begin < bytes(); begin = next++ * 100'000) {
        const uint64_t end = std::min(bytes(), begin + 100'000);
        filler.Ask({.shard_index = 0, .begin = begin, .end = end});
        filler.BringIn(0, begin, end);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Comes(0, bytes()));
}

}  // namespace
}  // namespace forestage
