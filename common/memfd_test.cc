#include "common/memfd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/errno_status.h"
#include "common/file_mapping.h"
#include "common/status_matchers.h"
#include "common/units.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> SomeBytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

TEST(MemfdTest, ASealedOneHoldsItsBytesForGood) {
  const std::vector<std::byte> bytes = SomeBytes(3 * PageBytes() + 11);
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSealedMemfd("test", bytes));
  ASSERT_OK_AND_ASSIGN(const FileMapping mapping, FileMapping::MapReadOnly(fd.get(), bytes.size()));
  EXPECT_EQ(std::memcmp(mapping.bytes().data(), bytes.data(), bytes.size()), 0);
  const char byte = 'x';
  EXPECT_EQ(pwrite(fd.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes.size()) + 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ErrnoOf(FileMapping::MapReadWrite(fd.get(), bytes.size()).status()), EPERM);
  EXPECT_OK(CheckSealed(fd.get(), /*unwritable=*/true));
}

TEST(MemfdTest, ASealedOneMayBeEmpty) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSealedMemfd("test", {}));
  EXPECT_OK(CheckSealed(fd.get(), /*unwritable=*/true));
}

TEST(MemfdTest, ClosesOnExec) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeSealedMemfd("test", SomeBytes(1)));
  EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST(MemfdTest, AfterSealingFutureWritesOnlyTheOldMappingWrites) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeFixedSizeMemfd("test", PageBytes()));
  ASSERT_OK_AND_ASSIGN(const FileMapping writer, FileMapping::MapReadWrite(fd.get(), PageBytes()));
  ASSERT_OK(SealFutureWrites(fd.get()));
  ASSERT_OK_AND_ASSIGN(const FileMapping reader, FileMapping::MapReadOnly(fd.get(), PageBytes()));
  writer.writable_bytes()[9] = std::byte{42};
  EXPECT_EQ(reader.bytes()[9], std::byte{42});

  EXPECT_EQ(ErrnoOf(FileMapping::MapReadWrite(fd.get(), PageBytes()).status()), EPERM);
  const char byte = 'x';
  EXPECT_EQ(pwrite(fd.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  // Nor by turning a read-only mapping into a writable one.
  EXPECT_EQ(
      mprotect(const_cast<std::byte*>(reader.bytes().data()), PageBytes(), PROT_READ | PROT_WRITE),
      -1);
  EXPECT_EQ(errno, EACCES);
}

TEST(MemfdTest, FixedSizeMeansThatItNeitherGrowsNorShrinks) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, MakeFixedSizeMemfd("test", 100));
  EXPECT_EQ(ftruncate(fd.get(), 99), -1);
  EXPECT_EQ(ftruncate(fd.get(), 101), -1);
  struct stat stat_buffer = {};
  ASSERT_EQ(fstat(fd.get(), &stat_buffer), 0);
  EXPECT_EQ(stat_buffer.st_size, 100);
}

TEST(MemfdTest, ChecksWhatWasSealed) {
  ASSERT_OK_AND_ASSIGN(const UniqueFd writable, MakeFixedSizeMemfd("test", 8));
  EXPECT_OK(CheckSealed(writable.get(), /*unwritable=*/false));
  EXPECT_THAT(CheckSealed(writable.get(), /*unwritable=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("against writing")));
  const UniqueFd loose(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_THAT(CheckSealed(loose.get(), /*unwritable=*/false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("against shrinking")));
}

TEST(MemfdTest, NeitherPipesNorClosedDescriptorsAreSealed) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  EXPECT_THAT(CheckSealed(read_end.get(), /*unwritable=*/false),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("sealed")));
  EXPECT_EQ(ErrnoOf(CheckSealed(-1, /*unwritable=*/false)), EBADF);
}

}  // namespace
}  // namespace forestage
