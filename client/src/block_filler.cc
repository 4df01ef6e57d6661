#include "client/src/block_filler.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/src/shard_reader.h"
#include <sys/stat.h>

#include "common/cached_bytes.h"
#include "common/check.h"
#include "common/file_mapping.h"

namespace forestage {
namespace {

uint64_t BlockEnd(const OpenShard& shard, uint64_t block) {
  return std::min(shard.bytes, block + BlockFiller::kBlockBytes);
}

// nullopt where the kernel does not say.
std::optional<uint64_t> CachedOf(const OpenShard& shard, uint64_t begin, uint64_t end) {
  const absl::StatusOr<uint64_t> cached = CachedBytes(shard.fd.get(), begin, end);
  if (!cached.ok()) return std::nullopt;
  return *cached;
}

// The first page's fault brings in the block, the last page's waits for it; the pages between would
// cost time to map where they are small. Whoever reads meets the error.
void FillBlock(const OpenShard& shard, uint64_t block) {
  if (!shard.mapping.PopulateRead(block, block + 1).ok()) return;
  const uint64_t end = BlockEnd(shard, block);
  shard.mapping.PopulateRead(end - 1, end).IgnoreError();
}

}  // namespace

// Which blocks are wanted whole.
class BlockFiller::WantedBlocks {
 public:
  WantedBlocks(const CheckpointFiles& files, std::vector<ReadAhead::Part> parts,
               absl::Span<const uint64_t> data_begins)
      : missing_(files.shards().size()) {
    // Headers were read before.
    for (uint32_t i = 0; i < data_begins.size(); ++i) {
      parts.push_back({.shard_index = i, .begin = 0, .end = data_begins[i]});
    }
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return std::pair(a.shard_index, a.begin) < std::pair(b.shard_index, b.begin);
    });
    for (uint32_t i = 0; i < missing_.size(); ++i) {
      const OpenShard& shard = files.shards()[i];
      for (uint64_t block = 0; block < shard.bytes; block += kBlockBytes) {
        missing_[i].push_back(static_cast<uint32_t>(BlockEnd(shard, block) - block));
      }
    }
    uint32_t shard_index = 0;
    uint64_t done = 0;
    for (const ReadAhead::Part& part : parts) {
      if (part.shard_index != std::exchange(shard_index, part.shard_index)) done = 0;
      for (uint64_t begin = std::max(done, part.begin); begin < part.end;) {
        const uint64_t next = std::min(part.end, AlignDown(begin, kBlockBytes) + kBlockBytes);
        missing_[shard_index][begin / kBlockBytes] -= static_cast<uint32_t>(next - begin);
        begin = next;
      }
      done = std::max(done, part.end);
    }
  }

  bool IsWhole(uint32_t shard_index, uint64_t block) const {
    return missing_[shard_index][block / kBlockBytes] <= kUnwantedBytesMax;
  }

 private:
  // Bytes of each block of each shard that nobody wants.
  std::vector<std::vector<uint32_t>> missing_;
};

// What the threads use; shared, since they may outlive their filler.
struct BlockFiller::Work {
  struct Block {
    uint32_t shard_index = 0;
    uint64_t begin = 0;
  };

  explicit Work(std::shared_ptr<const CheckpointFiles> all_files) : files(std::move(all_files)) {}

  static void* RunThread(void* argument) {
    const std::unique_ptr<std::shared_ptr<Work>> work(
        static_cast<std::shared_ptr<Work>*>(argument));
    (*work)->Run();
    return nullptr;
  }

  void Run() ABSL_LOCKS_EXCLUDED(mutex) {
    mutex.Lock();
    while (true) {
      ++idle;
      mutex.Await(absl::Condition(
          +[](Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work->mutex) {
            return work->stopped || !work->queue.empty();
          },
          this));
      --idle;
      if (stopped) break;
      const Block block = queue.front();
      queue.pop_front();
      mutex.Unlock();
      FillBlock(files->shards()[block.shard_index], block.begin);
      mutex.Lock();
    }
    --running;
    mutex.Unlock();
  }

  const std::shared_ptr<const CheckpointFiles> files;
  absl::Mutex mutex;
  std::deque<Block> queue ABSL_GUARDED_BY(mutex);
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  size_t running ABSL_GUARDED_BY(mutex) = 0;
  size_t idle ABSL_GUARDED_BY(mutex) = 0;
};

BlockFiller::BlockFiller(Options options)
    : options_(std::move(options)),
      work_(std::make_shared<Work>(options_.files)),
      ways_(std::make_unique<std::atomic<Way>[]>(options_.files->shards().size())) {
  CHECK(options_.threads_max >= 1);
}

BlockFiller::~BlockFiller() {
  Stop();
  absl::MutexLock lock(&work_->mutex);
  work_->mutex.AwaitWithTimeout(
      absl::Condition(
          +[](Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(work->mutex) { return work->running == 0; },
          work_.get()),
      kStopPatience);
}

void BlockFiller::Stop() {
  absl::MutexLock lock(&work_->mutex);
  work_->stopped = true;
  work_->queue.clear();
}

bool BlockFiller::Queue(uint32_t shard_index, uint64_t block) {
  absl::MutexLock lock(&work_->mutex);
  if (work_->stopped) return true;
  if (work_->idle <= work_->queue.size() && work_->running < options_.threads_max) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread = {};
    auto argument = std::make_unique<std::shared_ptr<Work>>(work_);
    if (pthread_create(&thread, &attributes, Work::RunThread, argument.get()) == 0) {
      static_cast<void>(argument.release());
      ++work_->running;
    }
    pthread_attr_destroy(&attributes);
  }
  if (work_->running == 0) return false;
  work_->queue.push_back({.shard_index = shard_index, .begin = block});
  return true;
}

BlockFiller::Way BlockFiller::Try(uint32_t shard_index, uint64_t block) const {
  const OpenShard& shard = options_.files->shards()[shard_index];
  // A mapping of its own: what is learned here decides what the shard's own is told.
  absl::StatusOr<FileMapping> mapping = FileMapping::MapReadOnly(shard.fd.get(), shard.bytes);
  if (!mapping.ok()) return Way::kAdvice;
  mapping->FaultInHugePages();
  if (!mapping->PopulateRead(block, block + 1).ok()) return Way::kAdvice;
  const std::optional<uint64_t> cached = CachedOf(shard, block, block + kBlockBytes);
  return cached.has_value() && *cached > kBlockBytes / 2 ? Way::kFaults : Way::kAdvice;
}

BlockFiller::Way BlockFiller::WayOf(uint32_t shard_index, uint64_t block) {
  std::atomic<Way>& way = ways_[shard_index];
  if (way.load(std::memory_order_relaxed) != Way::kUnknown) return way;
  const OpenShard& shard = options_.files->shards()[shard_index];
  struct stat stat_buffer = {};
  if (!shard.mapped || fstat(shard.fd.get(), &stat_buffer) != 0) return way = Way::kAdvice;
  const auto known = std::find_if(mounts_.begin(), mounts_.end(), [&](const auto& mount) {
    return mount.first == stat_buffer.st_dev;
  });
  Way found = Way::kUnknown;
  if (known != mounts_.end()) {
    found = known->second;
  } else {
    const std::optional<uint64_t> cached = CachedOf(shard, block, block + kBlockBytes);
    // Where the kernel does not say what is in memory, nothing can be learned.
    if (!cached.has_value()) return way = Way::kAdvice;
    if (*cached != 0 || block + kBlockBytes > shard.bytes) return Way::kAdvice;
    found = Try(shard_index, block);
    mounts_.emplace_back(stat_buffer.st_dev, found);
  }
  if (found == Way::kFaults) shard.mapping.FaultInHugePages();
  way.store(found, std::memory_order_release);
  return found;
}

bool BlockFiller::IsWantedWhole(uint32_t shard_index, uint64_t block) {
  if (options_.others_want_the_rest || !options_.wanted.has_value()) return true;
  if (wanted_ == nullptr) {
    wanted_ =
        std::make_unique<WantedBlocks>(*options_.files, *options_.wanted, options_.data_begins);
  }
  return wanted_->IsWhole(shard_index, block);
}

void BlockFiller::Ask(const ReadAhead::Part& part) {
  const OpenShard& shard = options_.files->shards()[part.shard_index];
  // To look at each block costs as much as to use them when they are there.
  if (AllCached(shard.fd.get(), part.begin, part.end)) return;
  absl::MutexLock lock(&mutex_);
  for (uint64_t begin = part.begin; begin < part.end;) {
    const uint64_t block = AlignDown(begin, kBlockBytes);
    const uint64_t end = std::min(part.end, block + kBlockBytes);
    const bool whole = IsWantedWhole(part.shard_index, block);
    if (whole && AllCached(shard.fd.get(), block, BlockEnd(shard, block))) {
      // The rest of a block that was brought in for its beginning.
    } else if (!whole || WayOf(part.shard_index, block) != Way::kFaults ||
               !Queue(part.shard_index, block)) {
      AdviseRange(shard, begin, end);
    }
    begin = end;
  }
}

bool BlockFiller::UsesFaults(uint32_t shard_index) const {
  return ways_[shard_index].load(std::memory_order_acquire) == Way::kFaults;
}

void BlockFiller::BringIn(uint32_t shard_index, uint64_t begin, uint64_t end) const {
  if (!UsesFaults(shard_index)) return;
  const OpenShard& shard = options_.files->shards()[shard_index];
  for (uint64_t block = AlignDown(begin, kBlockBytes); block < end; block += kBlockBytes) {
    FillBlock(shard, block);
  }
}

}  // namespace forestage
