#include "tests/model/model_files.h"

#include <fcntl.h>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "common/check.h"
#include "daemon/staging/checkpoint_files_for_test.h"

namespace forestage {
namespace {

constexpr int64_t kSecondsThen = 1'700'000'000;

}  // namespace

// On a disk: of files in memory nobody needs memory for the page cache.
ModelFiles::ModelFiles() : directory_(kDiskForTest) {
  // Tensors that share extents, end within them, and have none.
  const std::vector<std::vector<std::vector<uint64_t>>> tensors = {
      {{20000, 3000, 0, 9000, 40000}, {9000, 11000}}, {{100, 30000}}, {{4096}}};
  for (size_t checkpoint = 0; checkpoint < kCheckpoints; ++checkpoint) {
    names_.emplace_back();
    for (size_t shard = 0; shard < tensors[checkpoint].size(); ++shard) {
      names_.back().push_back(absl::StrCat("c", checkpoint, "-", shard, ".safetensors"));
      std::vector<TensorForTest> shard_tensors;
      for (size_t i = 0; i < tensors[checkpoint][shard].size(); ++i) {
        shard_tensors.push_back(
            {.name = absl::StrCat("t", shard, ".", i), .bytes = tensors[checkpoint][shard][i]});
      }
      std::vector<std::byte> bytes = SafetensorsForTest(shard_tensors);
      if (checkpoint == kDamaged) bytes[8] = std::byte{'x'};
      WriteFileForTest(Path(checkpoint, shard), bytes);
    }
  }
  Restore();
}

std::string ModelFiles::Path(size_t checkpoint, size_t shard) const {
  return directory_.File(names_[checkpoint][shard]);
}

void ModelFiles::SetTime(size_t checkpoint, size_t shard, int64_t seconds) const {
  const timespec times[2] = {{.tv_sec = seconds, .tv_nsec = 0}, {.tv_sec = seconds, .tv_nsec = 0}};
  CHECK(utimensat(AT_FDCWD, Path(checkpoint, shard).c_str(), times, 0) == 0);
}

void ModelFiles::Restore() {
  for (size_t checkpoint = 0; checkpoint < kCheckpoints; ++checkpoint) {
    for (size_t shard = 0; shard < names_[checkpoint].size(); ++shard) {
      SetTime(checkpoint, shard, kSecondsThen);
    }
  }
  changes_ = 0;
}

void ModelFiles::Change(size_t checkpoint, size_t shard) {
  SetTime(checkpoint, shard, kSecondsThen + ++changes_);
}

std::vector<ModelFiles::Shard> ModelFiles::Open(size_t checkpoint) const {
  std::vector<Shard> shards;
  for (size_t i = 0; i < names_[checkpoint].size(); ++i) {
    UniqueFd fd = OpenForTest(Path(checkpoint, i));
    const absl::StatusOr<CacheIdentity> identity = CacheIdentityOf(fd.get());
    CHECK(identity.ok());
    shards.push_back({.name = names_[checkpoint][i],
                      .bytes = identity->bytes,
                      .mtime_ns = identity->mtime_ns,
                      .fd = std::move(fd)});
  }
  return shards;
}

}  // namespace forestage
