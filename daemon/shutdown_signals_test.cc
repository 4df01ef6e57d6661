#include "daemon/shutdown_signals.h"

#include <signal.h>
#include <unistd.h>

#include <string>

#include "common/child_process.h"
#include "common/status_matchers.h"

namespace forestage {
namespace {

// Tells the parent that the child has come to a point.
class Gate {
 public:
  Gate() { EXPECT_EQ(pipe(ends_), 0); }
  ~Gate() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Open() const { EXPECT_EQ(write(ends_[1], "x", 1), 1); }
  void Pass() const {
    char byte = 0;
    EXPECT_EQ(read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2] = {-1, -1};
};

[[noreturn]] void HangForever() {
  while (true) pause();
}

TEST(ShutdownSignalsTest, TheFirstSignalIsWaitedForByName) {
  for (const int number : {SIGTERM, SIGINT}) {
    const Gate ready;
    ChildProcess daemon([&] {
      const auto signals = ShutdownSignals::Create();
      ASSERT_OK(signals);
      ready.Open();
      EXPECT_EQ((*signals)->Wait(), std::string(number == SIGTERM ? "SIGTERM" : "SIGINT"));
    });
    ready.Pass();
    kill(daemon.pid(), number);
    EXPECT_EQ(daemon.Wait(), 0);
  }
}

TEST(ShutdownSignalsTest, ASignalBeforeAnybodyWaitsIsKept) {
  ChildProcess daemon([] {
    const auto signals = ShutdownSignals::Create();
    ASSERT_OK(signals);
    kill(getpid(), SIGTERM);
    EXPECT_EQ((*signals)->Wait(), std::string("SIGTERM"));
  });
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(ShutdownSignalsTest, TheSecondSignalEndsAProcessWhoseDrainHangs) {
  const Gate draining;
  ChildProcess daemon([&] {
    const auto signals = ShutdownSignals::Create();
    ASSERT_OK(signals);
    kill(getpid(), SIGTERM);
    (*signals)->Wait();
    (*signals)->ExitAtNextSignal(absl::InfiniteDuration());
    draining.Open();
    HangForever();
  });
  draining.Pass();
  kill(daemon.pid(), SIGINT);
  EXPECT_EQ(daemon.Wait(), ShutdownSignals::kSecondSignalExitCode);
}

TEST(ShutdownSignalsTest, TheEndOfTheGraceEndsAProcessWhoseDrainHangs) {
  ChildProcess daemon([] {
    const auto signals = ShutdownSignals::Create();
    ASSERT_OK(signals);
    kill(getpid(), SIGTERM);
    (*signals)->Wait();
    (*signals)->ExitAtNextSignal(absl::Milliseconds(20));
    HangForever();
  });
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(ShutdownSignalsTest, ADrainThatEndsInTimeIsNotDisturbed) {
  ChildProcess daemon([] {
    const auto signals = ShutdownSignals::Create();
    ASSERT_OK(signals);
    kill(getpid(), SIGTERM);
    (*signals)->Wait();
    (*signals)->ExitAtNextSignal(absl::Hours(1));
    // The destructor stops the thread.
  });
  EXPECT_EQ(daemon.Wait(), 0);
}

TEST(ShutdownSignalsTest, WritingToAClosedPipeIsAnErrorNotASignal) {
  ChildProcess daemon([] {
    const auto signals = ShutdownSignals::Create();
    ASSERT_OK(signals);
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    close(ends[0]);
    EXPECT_EQ(write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  });
  EXPECT_EQ(daemon.Wait(), 0);
}

}  // namespace
}  // namespace forestage
