#include "daemon/session/exit_watch.h"

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common/status_matchers.h"

namespace forestage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A child that does nothing until it is killed.
struct Child {
  Child() : pid(fork()) {
    if (pid == 0) {
      while (true) pause();
    }
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    EXPECT_GE(pidfd, 0);
    peer.pid = pid;
    peer.pidfd = std::make_shared<const UniqueFd>(pidfd);
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    pid = -1;
  }
  pid_t pid;
  PeerIdentity peer;
};

TEST(ExitWatchTest, NamesEverySessionOfAProcessThatExited) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ExitWatch> watch, ExitWatch::Create());
  Child first;
  Child second;
  ASSERT_OK(watch->Watch(1, first.peer));
  ASSERT_OK(watch->Watch(2, second.peer));
  ASSERT_OK(watch->Watch(3, first.peer));
  EXPECT_THAT(watch->Wait(absl::Now()), IsEmpty());
  first.Kill();
  EXPECT_THAT(watch->Wait(absl::Now() + kPatience), UnorderedElementsAre(1, 3));
  watch->Forget(1);
  EXPECT_THAT(watch->Wait(absl::Now() + kPatience), ElementsAre(3)) << "until it is forgotten";
  watch->Forget(3);
  EXPECT_THAT(watch->Wait(absl::Now()), IsEmpty());
}

TEST(ExitWatchTest, WakeEndsTheWaitEvenBeforeItBegan) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ExitWatch> watch, ExitWatch::Create());
  // Without a wake-up a wait comes back by itself after a minute.
  const absl::Time start = absl::Now();
  watch->Wake();
  EXPECT_THAT(watch->Wait(absl::InfiniteFuture()), IsEmpty());
  std::thread waker([&watch] { watch->Wake(); });
  EXPECT_THAT(watch->Wait(absl::InfiniteFuture()), IsEmpty());
  waker.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(50));
}

TEST(ExitWatchTest, PeerWithoutPidfdIsNeverNamed) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ExitWatch> watch, ExitWatch::Create());
  EXPECT_OK(watch->Watch(1, PeerIdentity()));
  EXPECT_THAT(watch->Wait(absl::Now()), IsEmpty());
  watch->Forget(1);
}

}  // namespace
}  // namespace forestage
