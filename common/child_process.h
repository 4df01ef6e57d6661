// A process that runs a function; for tests only.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <utility>

#include "gtest/gtest.h"
#include <sys/wait.h>

#include "common/check.h"

namespace forestage {

// Forks in its constructor. The child runs `body` and ends: with 0 when no expectation failed in
// it, else with 1. Fork before the test starts threads.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& body) : pid_(fork()) {
    CHECK(pid_ >= 0);
    if (pid_ != 0) return;
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~ChildProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // The exit code, or 128 + the number of the signal that ended it.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) CHECK(errno == EINTR);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

}  // namespace forestage
