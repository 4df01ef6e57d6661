// A rank of `forestage load` as its parent sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/global_options.h"
#include "client/cli/rank_message.h"
#include "client/cli/rank_options.h"
#include <sys/types.h>

#include "common/unique_fd.h"

namespace forestage {

// Owns one child process. Not thread-safe.
//
//   running --ReadMessages finds the end of the pipe--> ended (reaped)
class RankProcess {
 public:
  // Starts this program again with the hidden command `rank`. Errors name the system call.
  // `gate` becomes its kRankGateDescriptor; requires gate > kRankGateDescriptor where the options
  // say that the rank waits for it.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(const GlobalOptions& global,
                                                            const RankOptions& options, int gate);
  // Kills what still runs, and waits for it, but not for its storage.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  uint32_t rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Readable when ReadMessages has something to do. Requires: running().
  int descriptor() const { return pipe_.get(); }
  bool running() const { return pipe_.valid(); }

  // What has come; does not block while the rank runs. At the end of the pipe it waits for the
  // process, which is ending, for kEndPatience at most, and `running` turns false. Something that
  // is no message is a note.
  std::vector<RankMessage> ReadMessages();

  // "killed by signal 9 (Killed)", "ended with exit code 1", or that it cannot end. Requires:
  // !running().
  const std::string& end() const { return end_; }
  // The signal that has killed it, else 0. Requires: !running().
  int end_signal() const { return end_signal_; }

  // SIGTERM: a rank holds nothing that needs an orderly end, but one that waits for storage that
  // never answers can then still give up its session.
  void Terminate();
  // SIGKILL, for one that is stopped.
  void Kill();
  // Waits until `deadline` for its end, of which it has been told; says whether it has come, and
  // `running` is false then.
  bool WaitForEnd(absl::Time deadline);
  // Its end is waited for no longer, and `running` turns false.
  void Abandon();

 private:
  RankProcess(uint32_t rank, pid_t pid, UniqueFd pipe);
  const uint32_t rank_;
  const pid_t pid_;
  // Reading end; closed when the process has ended.
  UniqueFd pipe_;
  // Beginning of a line whose end has not come.
  std::string partial_line_;
  std::string end_;
  int end_signal_ = 0;
};

}  // namespace forestage
