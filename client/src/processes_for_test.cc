#include "client/src/processes_for_test.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/check.h"

namespace forestage {

ProcessForTest::ProcessForTest(const std::vector<std::string>& arguments) {
  int to_child[2] = {-1, -1};
  int from_child[2] = {-1, -1};
  CHECK(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(from_child, O_CLOEXEC) == 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  CHECK(pid_ >= 0);
  if (pid_ == 0) {
    // Nothing outlives a test that crashes.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(to_child[0], STDIN_FILENO);
    dup2(from_child[1], STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(to_child[0]);
  close(from_child[1]);
  input_.Reset(to_child[1]);
  output_.Reset(from_child[0]);
}

ProcessForTest::~ProcessForTest() {
  if (ended_) return;
  Signal(SIGKILL);
  Wait();
}

void ProcessForTest::Signal(int signal) const { CHECK(kill(pid_, signal) == 0); }

int ProcessForTest::Wait() {
  if (!ended_) {
    CHECK(waitpid(pid_, &wait_status_, 0) == pid_);
    ended_ = true;
  }
  return wait_status_;
}

void ProcessForTest::WaitUntilStopped() const {
  siginfo_t info = {};
  CHECK(waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT) == 0);
}

std::string ProcessForTest::ReadLine() {
  std::string line;
  char c = 0;
  while (read(output_.get(), &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

std::unique_ptr<ProcessForTest> StartDaemonForTest(const std::string& socket_path,
                                                   const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {FORESTAGED, "--socket",    socket_path, "--metrics-address",
                                        "none",     "--log-level", "warning"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return std::make_unique<ProcessForTest>(arguments);
}

}  // namespace forestage
