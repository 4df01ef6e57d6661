// Programs that a test starts: the daemon, and ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// A program that reads from and writes to this test. Killed when the object goes.
class ChildProcess {
 public:
  // `arguments[0]` is the program's path.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

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
std::unique_ptr<ChildProcess> StartDaemonForTest(const std::string& socket_path,
                                                 const std::vector<std::string>& more = {});

}  // namespace forestage
