#include "daemon/storage/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/storage/files_for_test.h"
#include "daemon/storage/thread_pool_storage_reader.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kStranger = 65533;

class ShardFileTest : public ::testing::Test {
 protected:
  std::string Write(uint64_t bytes, const std::string& name = "shard") {
    WriteFileForTest(directory_.File(name), PatternForTest(bytes));
    return directory_.File(name);
  }
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(const std::string& path,
                                                         int flags = O_RDONLY) {
    return ShardFile::Open("model.safetensors", OpenForTest(path, flags));
  }

  TemporaryDirectoryForTest directory_{kDiskForTest};
};

TEST_F(ShardFileTest, KnowsItsFile) {
  const std::string path = Write(10000);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  EXPECT_EQ(file->name(), "model.safetensors");
  EXPECT_EQ(file->bytes(), 10000u);
  EXPECT_EQ(file->mapping().bytes().size(), 10000u);
  EXPECT_EQ(file->advice_bytes_max() % PageBytes(), 0u);
  ASSERT_OK_AND_ASSIGN(const CacheIdentity identity, CacheIdentityOf(file->fd()));
  EXPECT_EQ(identity, file->identity());
  EXPECT_OK(file->CheckUnchanged());
}

TEST_F(ShardFileTest, ReadsThroughADescriptorOfItsOwn) {
  const std::string path = Write(100);
  UniqueFd received = OpenForTest(path, O_RDWR);
  ASSERT_EQ(lseek(received.get(), 50, SEEK_SET), 50);
  ASSERT_OK_AND_ASSIGN(const auto file, ShardFile::Open("shard", std::move(received)));
  EXPECT_EQ(fcntl(file->fd(), F_GETFL) & O_ACCMODE, O_RDONLY);
  EXPECT_NE(fcntl(file->fd(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(lseek(file->fd(), 0, SEEK_CUR), 0);
}

TEST_F(ShardFileTest, RefusesWhatIsNotARegularFile) {
  EXPECT_THAT(Open(directory_.path(), O_RDONLY | O_DIRECTORY),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model.safetensors"), HasSubstr("regular"))));
  EXPECT_THAT(Open("/dev/null"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular")));
  int pipes[2] = {};
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd writer(pipes[1]);
  EXPECT_THAT(ShardFile::Open("pipe", UniqueFd(pipes[0])),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular")));
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_THAT(ShardFile::Open("socket", std::move(socket_fd)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular")));
  EXPECT_FALSE(ShardFile::Open("nothing", UniqueFd()).ok());
}

TEST_F(ShardFileTest, RefusesADescriptorThatCannotBeRead) {
  const std::string path = Write(100);
  EXPECT_THAT(Open(path, O_WRONLY),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not open for reading")));
  EXPECT_THAT(Open(path, O_PATH),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not open for reading")));
}

TEST_F(ShardFileTest, RefusesFilesThatTheKernelMakesUp) {
  EXPECT_THAT(Open("/proc/self/status"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("proc")));
  EXPECT_THAT(Open("/sys/kernel/mm/transparent_hugepage/enabled"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sysfs")));
}

TEST_F(ShardFileTest, SeesThatItsFileWasChanged) {
  const std::string path = Write(10000);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  ASSERT_EQ(truncate(path.c_str(), 9000), 0);
  EXPECT_THAT(file->CheckUnchanged(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("model.safetensors"),
                             HasSubstr("it has 9000 bytes now and had 10000; "))));
  ASSERT_OK_AND_ASSIGN(const uint64_t bytes, file->CurrentBytes());
  EXPECT_EQ(bytes, 9000u);
}

// Does something to an open file, again and again, until the clock that stamps files has moved on.
void RepeatUntilStamped(int fd, const std::function<void()>& change) {
  struct stat before = {};
  ASSERT_EQ(fstat(fd, &before), 0);
  struct stat now = before;
  while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
         now.st_ctim.tv_nsec == before.st_ctim.tv_nsec) {
    change();
    ASSERT_EQ(fstat(fd, &now), 0);
  }
}

// As who would hide that a file was written to.
void WriteAndSetTimeBack(const std::string& path) {
  struct stat before = {};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  const UniqueFd writer = OpenForTest(path, O_WRONLY);
  ASSERT_EQ(pwrite(writer.get(), "x", 1, 0), 1);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  RepeatUntilStamped(writer.get(), [&] { ASSERT_EQ(futimens(writer.get(), times), 0); });
  struct stat now = {};
  ASSERT_EQ(fstat(writer.get(), &now), 0);
  ASSERT_EQ(now.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
}

TEST_F(ShardFileTest, IsUnchangedWhenItIsRenamedLinkedGivenAwayOrDeleted) {
  const std::string path = Write(10000);
  const std::string other = directory_.File("other");
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  const std::vector<std::function<int()>> changes = {
      [&] { return chmod(path.c_str(), 0600); },
      [&] { return link(path.c_str(), other.c_str()); },
      [&] { return unlink(other.c_str()); },
      [&] { return rename(path.c_str(), other.c_str()); },
      [&] { return geteuid() != 0 ? 0 : chown(other.c_str(), 12345, 12345); },
      [&] { return unlink(other.c_str()); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    // Stamps of two changes differ only when the clock has moved on; each is looked at, so that it
    // is explained by itself.
    ASSERT_EQ(changes[i](), 0);
    EXPECT_OK(file->CheckUnchanged());
    EXPECT_OK(file->CheckUnchanged());
  }
}

TEST_F(ShardFileTest, SeesThatItsFileWasWrittenInPlaceWithItsTimeSetBack) {
  const std::string path = Write(10000);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  WriteAndSetTimeBack(path);
  EXPECT_THAT(file->CheckUnchanged(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("changed"), HasSubstr("modification time set back"))));
  // Nothing that comes later explains it.
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_FALSE(file->CheckUnchanged().ok());
}

TEST_F(ShardFileTest, SeesAWriteWithTheTimeSetBackAlsoAfterARename) {
  const std::string path = Write(10000);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  const UniqueFd open_file = OpenForTest(path, O_RDONLY);
  ASSERT_EQ(rename(path.c_str(), directory_.File("other").c_str()), 0);
  RepeatUntilStamped(open_file.get(), [&] {
    ASSERT_EQ(rename(directory_.File("other").c_str(), path.c_str()), 0);
    ASSERT_EQ(rename(path.c_str(), directory_.File("other").c_str()), 0);
  });
  ASSERT_OK(file->CheckUnchanged());
  WriteAndSetTimeBack(directory_.File("other"));
  EXPECT_FALSE(file->CheckUnchanged().ok());
}

TEST_F(ShardFileTest, TellsWhichPagesAreMissing) {
  const uint64_t page = PageBytes();
  const std::string path = Write(64 * page + 10);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
  EXPECT_EQ(file->MissingRanges(0, file->bytes()), std::vector<ByteRange>());
  MakeColdForTest(path);
  const std::vector<ByteRange> all = {{.begin = 0, .end = file->bytes()}};
  ASSERT_EQ(file->MissingRanges(0, file->bytes()), all);
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), 0u);
  EXPECT_EQ(file->ResidentBytes(64 * page, 10), 0u);
  const std::vector<ByteRange> tail = {{.begin = 64 * page, .end = file->bytes()}};
  EXPECT_EQ(file->MissingRanges(64 * page, 10), tail);
  EXPECT_EQ(file->MissingRanges(64 * page, 0), std::vector<ByteRange>());
}

TEST_F(ShardFileTest, WhatWasFaultedInCanBeEvictedOnceItIsUnmapped) {
  const std::string path = Write(kFaultBlockBytes + 10);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  ASSERT_OK(file->mapping().PopulateRead(0, file->bytes()));
  file->UnmapBlocks(kFaultBlockBytes / 2, kFaultBlockBytes / 2 + 1);
  file->UnmapBlocks(kFaultBlockBytes + 5, kFaultBlockBytes + 10);
  MakeColdForTest(path);
  EXPECT_EQ(file->CachedBytes(), 0);
}

TEST_F(ShardFileTest, LookingAtHugeBlocksReadsNothingAndKeepsNothing) {
  const uint64_t page = PageBytes();
  const uint64_t block = kFaultBlockBytes;
  const std::string path = Write(3 * block + 10);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  EXPECT_EQ(file->MissingRanges(0, file->bytes()), std::vector<ByteRange>());
  EXPECT_EQ(file->MissingRanges(page, 2 * block), std::vector<ByteRange>());
  // Whoever evicts the file finds no page of it mapped.
  MakeColdForTest(path);
  const std::vector<ByteRange> all = {{.begin = 0, .end = file->bytes()}};
  ASSERT_EQ(file->MissingRanges(0, file->bytes()), all);
  // The second block lacks its first page, the third its last ones.
  WarmForTest(path, 0, block);
  WarmForTest(path, block + page, 2 * block - 4 * page);
  const std::vector<ByteRange> holes = {{.begin = block, .end = block + page},
                                        {.begin = 3 * block - 3 * page, .end = file->bytes()}};
  EXPECT_EQ(file->MissingRanges(0, file->bytes()), holes);
  EXPECT_EQ(file->MissingRanges(0, file->bytes()), holes);
}

TEST_F(ShardFileTest, TellsAtAGlanceWhetherAllIsCached) {
  const std::string path = Write(3 * kFaultBlockBytes + 10);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  const bool honest = file->probe().mincore.yes() && !file->probe().cachestat.no();
  EXPECT_EQ(file->LooksCached(0, file->bytes()), honest);
  EXPECT_EQ(file->LooksCached(kFaultBlockBytes, 1), honest);
  MakeColdForTest(path, kFaultBlockBytes, kFaultBlockBytes);
  EXPECT_FALSE(file->LooksCached(0, file->bytes()));
  EXPECT_FALSE(file->LooksCached(kFaultBlockBytes, 1));
  EXPECT_EQ(file->LooksCached(2 * kFaultBlockBytes, 10), honest);
}

TEST_F(ShardFileTest, DoesNotTrustAGlanceWhereAReadHasFailed) {
  const std::string path = Write(kFaultBlockBytes);
  const pid_t child = fork();
  if (child == 0) {
    // In a process of its own, since it remembers for as long as it lives.
    auto file = ShardFile::Open("shard", OpenForTest(path));
    if (!file.ok()) _exit(1);
    (*file)->mount().SawReadFail();
    if ((*file)->LooksCached(0, (*file)->bytes())) _exit(2);
    const uint64_t device = (*file)->mount().device();
    *file = nullptr;
    file = ShardFile::Open("shard", OpenForTest(path));
    if (!file.ok() || (*file)->LooksCached(0, (*file)->bytes())) _exit(3);
    if ((*file)->MissingRanges(0, (*file)->bytes()) != std::vector<ByteRange>()) _exit(4);
    _exit(Mount::For(device)->read_failed() && !Mount::For(device + 1)->read_failed() ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ShardFileTest, AnEmptyFileHasNothingMissing) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(Write(0)));
  EXPECT_EQ(file->ResidentBytes(0, 0), 0u);
  EXPECT_TRUE(file->mapping().empty());
}

// Runs in a child without rights to a file of somebody else, of whose pages mincore lies there.
// Exit codes name what was wrong.
int LookAsAStranger(const std::string& path) {
  // Of this process only, by the raw call: no other thread is here to follow.
  if (syscall(SYS_setresuid, kStranger, kStranger, kStranger) != 0) return 1;
  auto file = ShardFile::Open("shard", OpenForTest(path));
  if (!file.ok()) return 2;
  if ((*file)->ResidentBytes(0, (*file)->bytes()).has_value()) return 3;
  const std::unique_ptr<StorageReader> reader = *ThreadPoolStorageReader::Create(2);
  reader->Start({.file = file->get(), .offset = 0, .bytes = (*file)->bytes(), .tag = 1});
  std::vector<ReadResult> results;
  while (results.empty()) results = reader->Wait(absl::InfiniteFuture());
  if (!results[0].status.ok()) return 4;
  return results[0].storage_bytes == (*file)->bytes() ? 0 : 5;
}

TEST_F(ShardFileTest, DoesNotBelieveMincoreOnAStrangersFileAndReadsItAllTheSame) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  const std::string path = Write(4 * kMiB);
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  MakeColdForTest(path);
  const pid_t child = fork();
  if (child == 0) _exit(LookAsAStranger(path));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(path));
  EXPECT_EQ(file->ResidentBytes(0, file->bytes()), file->bytes());
}

}  // namespace
}  // namespace forestage
