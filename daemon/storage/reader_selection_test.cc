#include "daemon/storage/reader_selection.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/seccomp_for_test.h"
#include "common/status_matchers.h"
#include "common/temporary_directory_for_test.h"
#include "common/units.h"
#include "daemon/storage/files_for_test.h"

namespace forestage {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Seen {
  bool exited = false;
  std::string text;
};

// Forbids the call in a child, which then selects a reader, reads `path` with it and prints what it
// saw.
Seen SelectWithout(long system_call, int error_number, ReaderChoice choice,
                   const std::string& path) {
  int pipes[2] = {};
  EXPECT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text = "cannot forbid";
    if (ForbidForTest(system_call, error_number)) {
      const absl::StatusOr<ReaderSelection> selection = SelectReader(choice);
      text = selection.ok() ? absl::StrCat(selection->name, "|", selection->reason)
                            : selection.status().ToString();
      if (selection.ok()) {
        const auto file = ShardFile::Open("shard", OpenForTest(path));
        const auto reader = selection->make_reader();
        (*reader)->Start({.file = file->get(), .offset = 0, .bytes = (*file)->bytes(), .tag = 1});
        std::vector<ReadResult> results;
        while (results.empty()) results = (*reader)->Wait(absl::InfiniteFuture());
        absl::StrAppend(&text, "|read: ", results[0].status.ToString());
      }
    }
    (void)!write(pipes[1], text.data(), text.size());
    _exit(0);
  }
  close(pipes[1]);
  Seen seen;
  char buffer[4096];
  for (ssize_t count; (count = read(pipes[0], buffer, sizeof(buffer))) > 0;) {
    seen.text.append(buffer, static_cast<size_t>(count));
  }
  close(pipes[0]);
  int status = 0;
  waitpid(child, &status, 0);
  seen.exited = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return seen;
}

class ReaderSelectionTest : public ::testing::Test {
 protected:
  ReaderSelectionTest() : path_(directory_.File("shard")) {
    WriteFileForTest(path_, PatternForTest(1 * kMiB));
    MakeColdForTest(path_);
  }
  TemporaryDirectoryForTest directory_{kDiskForTest};
  const std::string path_;
};

TEST_F(ReaderSelectionTest, TakesIoUringWhereItIsAllowed) {
  ASSERT_OK_AND_ASSIGN(const ReaderSelection selection, SelectReader(ReaderChoice::kAuto));
  EXPECT_EQ(selection.name, "io_uring");
  ASSERT_OK_AND_ASSIGN(const auto reader, selection.make_reader());
  EXPECT_EQ(reader->name(), "io_uring");
}

TEST_F(ReaderSelectionTest, TakesThreadsWhenAskedTo) {
  ASSERT_OK_AND_ASSIGN(const ReaderSelection selection, SelectReader(ReaderChoice::kThreads));
  EXPECT_EQ(selection.name, "threads");
  ASSERT_OK_AND_ASSIGN(const auto reader, selection.make_reader());
  EXPECT_EQ(reader->name(), "threads");
}

TEST_F(ReaderSelectionTest, TakesThreadsWhereAProfileForbidsIoUring) {
  const Seen seen = SelectWithout(SYS_io_uring_setup, EPERM, ReaderChoice::kAuto, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text, AllOf(HasSubstr("threads|"), HasSubstr("EPERM"), HasSubstr("seccomp"),
                               HasSubstr("read: OK")));
}

TEST_F(ReaderSelectionTest, TakesThreadsWhereAProfileHidesIoUring) {
  const Seen seen = SelectWithout(SYS_io_uring_setup, ENOSYS, ReaderChoice::kAuto, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text, AllOf(HasSubstr("threads|"), HasSubstr("ENOSYS"), HasSubstr("seccomp"),
                               HasSubstr("read: OK")));
}

TEST_F(ReaderSelectionTest, TakesThreadsWhereThereIsNoMemoryForARing) {
  const Seen seen = SelectWithout(SYS_io_uring_setup, ENOMEM, ReaderChoice::kAuto, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text,
              AllOf(HasSubstr("threads|"), HasSubstr("LimitMEMLOCK"), HasSubstr("read: OK")));
}

TEST_F(ReaderSelectionTest, TakesThreadsWhereRingsCanBeMadeButNotEntered) {
  const Seen seen = SelectWithout(SYS_io_uring_enter, EPERM, ReaderChoice::kAuto, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text,
              AllOf(HasSubstr("threads|"), HasSubstr("io_uring_enter"), HasSubstr("read: OK")));
}

TEST_F(ReaderSelectionTest, TakesThreadsWhereRingsCannotBeAskedWhatTheyCan) {
  const Seen seen = SelectWithout(SYS_io_uring_register, EPERM, ReaderChoice::kAuto, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text,
              AllOf(HasSubstr("threads|"), HasSubstr("io_uring_register"), HasSubstr("read: OK")));
}

TEST_F(ReaderSelectionTest, FailsWhereIoUringWasAskedForAndIsForbidden) {
  const Seen seen = SelectWithout(SYS_io_uring_setup, EPERM, ReaderChoice::kUring, path_);
  EXPECT_TRUE(seen.exited);
  EXPECT_THAT(seen.text, AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("seccomp")));
}

}  // namespace
}  // namespace forestage
