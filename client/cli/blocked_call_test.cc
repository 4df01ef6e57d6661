#include "client/cli/blocked_call.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "client/cli/stall_watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/temporary_directory_for_test.h"

namespace forestage {
namespace {

using ::testing::HasSubstr;

// A process that waits for somebody to write into a FIFO, as one does for storage that hangs.
class WaitingChild {
 public:
  explicit WaitingChild(const std::string& fifo) : pid_(fork()) {
    if (pid_ != 0) return;
    (void)open(fifo.c_str(), O_RDONLY | O_CLOEXEC);
    _exit(0);
  }
  ~WaitingChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  // Spins until it waits.
  BlockedCall Blocked() const {
    while (true) {
      if (auto blocked = FindBlockedCall(pid_)) return *blocked;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  const pid_t pid_;
};

class BlockedCallTest : public ::testing::Test {
 protected:
  BlockedCallTest() : fifo_(directory_.File("fi fo")) { EXPECT_EQ(mkfifo(fifo_.c_str(), 0600), 0); }

  TemporaryDirectoryForTest directory_;
  const std::string fifo_;
};

TEST_F(BlockedCallTest, NamesTheCallAndTheFile) {
  const WaitingChild child(fifo_);
  const BlockedCall blocked = child.Blocked();
  EXPECT_EQ(blocked.call, "open");
  EXPECT_EQ(blocked.file, fifo_);
  EXPECT_EQ(blocked.identity, child.Blocked().identity);
  EXPECT_THAT(StallText(blocked), HasSubstr("fi%20fo has not come back for 10s"));
}

TEST_F(BlockedCallTest, NothingOfAProcessThatWaitsForNoFile) {
  EXPECT_FALSE(FindBlockedCall(getpid()).has_value());
  EXPECT_FALSE(FindBlockedCall(-1).has_value());
}

TEST_F(BlockedCallTest, StallIsToldOnceWhenItsTimeIsOver) {
  const WaitingChild child(fifo_);
  (void)child.Blocked();
  const absl::Time begun = absl::Now();
  StallWatch watch(child.pid());
  watch.Restart(begun);
  EXPECT_FALSE(watch.Look(begun + absl::Seconds(5)).has_value());
  EXPECT_FALSE(watch.Look(begun + absl::Seconds(14)).has_value());
  EXPECT_TRUE(watch.Look(begun + absl::Seconds(16)).has_value());
  EXPECT_FALSE(watch.Look(begun + absl::Seconds(60)).has_value());
  watch.Restart(begun + absl::Seconds(60));
  EXPECT_FALSE(watch.Look(begun + absl::Seconds(65)).has_value());
  EXPECT_TRUE(watch.Look(begun + absl::Seconds(80)).has_value());
}

}  // namespace
}  // namespace forestage
