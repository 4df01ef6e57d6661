#include "common/thread_start.h"

#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"
#include <sys/resource.h>
#include <sys/wait.h>

#include "common/status_matchers.h"

namespace forestage {
namespace {

TEST(ThreadStartTest, RunsWhatItIsGiven) {
  bool ran = false;
  ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread([&ran] { ran = true; }));
  thread.join();
  EXPECT_TRUE(ran);
}

// In a child, which nobody else's threads count for: a user that is not root, and has one thread.
int StartBeyondTheLimit() {
  constexpr uid_t kUser = 54322;
  const rlimit one = {.rlim_cur = 1, .rlim_max = 1};
  if (setrlimit(RLIMIT_NPROC, &one) != 0) return 2;
  if (geteuid() == 0 && setuid(kUser) != 0) return 3;
  const absl::StatusOr<std::thread> thread = StartThread([] {});
  if (thread.ok()) return 4;
  return absl::IsResourceExhausted(thread.status()) ? 0 : 5;
}

TEST(ThreadStartTest, IsAnErrorWhereThereAreNoMoreThreads) {
  const pid_t child = fork();
  if (child == 0) _exit(StartBeyondTheLimit());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace forestage
