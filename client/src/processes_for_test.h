// Programs that a test starts: the daemon, and ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// A program that reads from and writes to this test. Killed when the object goes.
class ProcessForTest {
 public:
  // `arguments[0]` is the program's path.
  explicit ProcessForTest(const std::vector<std::string>& arguments);
  ~ProcessForTest();
  ProcessForTest(const ProcessForTest&) = delete;
  ProcessForTest& operator=(const ProcessForTest&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Blocks until it has ended; its wait status.
  int Wait();
  // Until SIGSTOP has taken effect.
  void WaitUntilStopped() const;
  // The next line that it writes, without its end; empty when it has ended. Blocks.
  std::string ReadLine();
  // Its standard input ends.
  void CloseInput() { input_.Reset(); }

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
  UniqueFd input_;
  UniqueFd output_;
};

// forestaged on a socket of its own, not necessarily ready yet.
std::unique_ptr<ProcessForTest> StartDaemonForTest(const std::string& socket_path,
                                                   const std::vector<std::string>& more = {});

}  // namespace forestage
