#include "client/cli/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <sys/wait.h>

#include "common/check.h"
#include "common/errno_status.h"
#include "common/status_macros.h"

extern char** environ;

namespace forestage {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
// How long the kernel may take to let a process go.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr absl::Duration kEndInterval = absl::Microseconds(500);
constexpr char kThisProgram[] = "/proc/self/exe";
// Of the dynamic linker: libraries' functions are found when the process starts, not each at its
// first call.
char kBindAtStart[] = "LD_BIND_NOW=1";

struct SpawnActions {
  posix_spawn_file_actions_t actions;

  SpawnActions() { CHECK(posix_spawn_file_actions_init(&actions) == 0); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
};

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& arguments, int message_descriptor,
                            std::optional<int> gate) {
  SpawnActions spawn;
  std::vector<char*> environment;
  // Ranks that wait for one moment have loaded their libraries by then, as programs have that load
  // them while they run.
  if (gate.has_value()) environment.push_back(kBindAtStart);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  CHECK(posix_spawn_file_actions_adddup2(&spawn.actions, message_descriptor,
                                         kRankMessageDescriptor) == 0);
  if (gate.has_value()) {
    CHECK(*gate > kRankGateDescriptor);
    CHECK(posix_spawn_file_actions_adddup2(&spawn.actions, *gate, kRankGateDescriptor) == 0);
  }
  // It inherits that the signals which end it are blocked, and looks at them when it can: one that
  // comes to the whole process group does not end it before the parent has seen it.
  std::string program = "forestage";
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers = {program.data()};
  for (std::string& argument : copies) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, kThisProgram, &spawn.actions, nullptr, pointers.data(), environment.data());
  if (error != 0) return ErrnoStatus(error, "cannot start a rank: posix_spawn");
  return pid;
}

std::string DescribeEnd(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    return absl::StrCat("killed by signal ", number, " (", strsignal(number), ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Start(const GlobalOptions& global,
                                                                const RankOptions& options,
                                                                int gate) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot start a rank: pipe2");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  // dup2 onto itself would keep close-on-exec, and one must not replace the source of the next.
  if (writing.get() <= kRankGateDescriptor) {
    writing.Reset(fcntl(writing.get(), F_DUPFD_CLOEXEC, kRankGateDescriptor + 1));
    if (!writing.valid()) return ErrnoStatus(errno, "cannot start a rank: fcntl(F_DUPFD_CLOEXEC)");
  }
  if (fcntl(reading.get(), F_SETFL, O_NONBLOCK) != 0)
    return ErrnoStatus(errno, "cannot start a rank: fcntl(F_SETFL)");
  ASSIGN_OR_RETURN(const pid_t pid,
                   Spawn(RankArguments(global, options), writing.get(),
                         options.together ? std::optional<int>(gate) : std::nullopt));
  return std::unique_ptr<RankProcess>(new RankProcess(options.rank, pid, std::move(reading)));
}

RankProcess::RankProcess(uint32_t rank, pid_t pid, UniqueFd pipe)
    : rank_(rank), pid_(pid), pipe_(std::move(pipe)) {}

RankProcess::~RankProcess() {
  if (!running()) return;
  Kill();
  if (!WaitForEnd(absl::Now() + kEndPatience)) Abandon();
}

std::vector<RankMessage> RankProcess::ReadMessages() {
  CHECK(running());
  std::vector<RankMessage> messages;
  std::array<char, kReadBytes> buffer;
  const ssize_t got = read(pipe_.get(), buffer.data(), buffer.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return messages;
  if (got <= 0) {
    if (!WaitForEnd(absl::Now() + kEndPatience)) Abandon();
    return messages;
  }
  partial_line_.append(buffer.data(), static_cast<size_t>(got));
  size_t begin = 0;
  for (size_t end; (end = partial_line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const absl::string_view line(partial_line_.data() + begin, end - begin);
    absl::StatusOr<RankMessage> message = DecodeRankMessage(line);
    messages.push_back(message.ok() ? *std::move(message)
                                    : RankNote{std::string(message.status().message())});
  }
  partial_line_.erase(0, begin);
  return messages;
}

void RankProcess::Terminate() {
  if (running()) kill(pid_, SIGTERM);
}

void RankProcess::Kill() {
  if (running()) kill(pid_, SIGKILL);
}

bool RankProcess::WaitForEnd(absl::Time deadline) {
  while (running()) {
    int wait_status = 0;
    const pid_t reaped = waitpid(pid_, &wait_status, WNOHANG);
    CHECK(reaped == pid_ || reaped == 0);
    if (reaped == pid_) {
      end_ = DescribeEnd(wait_status);
      end_signal_ = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
      pipe_.Reset();
    } else if (absl::Now() >= deadline) {
      return false;
    } else {
      absl::SleepFor(kEndInterval);
    }
  }
  return true;
}

void RankProcess::Abandon() {
  end_ = absl::StrCat("process ", pid_,
                      " waits for storage that does not answer, and stays until it does");
  pipe_.Reset();
}

}  // namespace forestage
