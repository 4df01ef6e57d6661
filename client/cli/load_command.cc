#include "client/cli/load_command.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/agreement_watch.h"
#include "client/cli/load_report.h"
#include "client/cli/oom_kills.h"
#include "client/cli/output.h"
#include "client/cli/progress_bar.h"
#include "client/cli/rank_process.h"
#include "client/cli/stall_watch.h"
#include <sys/stat.h>

#include "common/errno_status.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

// How soon a Ctrl-C is seen.
constexpr absl::Duration kSignalInterval = absl::Milliseconds(50);
// How long ranks may take to end, and again when they are killed.
constexpr absl::Duration kRankEndPatience = absl::Milliseconds(500);
constexpr absl::Duration kRankKillPatience = absl::Milliseconds(200);
// As many as the kernel follows.
constexpr int kLinksMax = 40;
// A signal to the process group reaches one process after the other.
constexpr absl::Duration kGroupSignalPatience = absl::Milliseconds(250);
constexpr char kLaunchNonceVariable[] = "FORESTAGE_LAUNCH_NONCE";

// The ranks of one load and what they said.
class RankSet {
 public:
  RankSet(const GlobalOptions& global, const LoadOptions& options)
      : global_(global), options_(options), digests_(options.ranks) {
    if (options.agreement == Agreement::kStrict && !global.no_daemon) {
      agreement_.emplace(options.ranks);
    }
  }

  absl::Status StartAll() {
    const std::string nonce = LaunchNonce();
    std::array<int, 2> ends;
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
    const UniqueFd reading(ends[0]);
    gate_.Reset(ends[1]);
    // Above the numbers that ranks find their descriptors at.
    const UniqueFd gate(fcntl(reading.get(), F_DUPFD_CLOEXEC, kRankGateDescriptor + 1));
    if (!gate.valid()) return ErrnoStatus(errno, "fcntl(F_DUPFD_CLOEXEC)");
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      RankOptions rank_options;
      rank_options.directory = options_.directory;
      rank_options.rank = rank;
      rank_options.ranks = options_.ranks;
      rank_options.share = options_.share;
      rank_options.verify = options_.verify;
      rank_options.own = options_.own;
      rank_options.together = options_.together;
      rank_options.digests = !options_.digests_path.empty();
      rank_options.policy = options_.policy;
      rank_options.agreement = options_.agreement;
      rank_options.group_name =
          options_.group_name.empty() ? absl::StrCat("load-", getpid()) : options_.group_name;
      rank_options.launch_nonce = nonce;
      ASSIGN_OR_RETURN(std::unique_ptr<RankProcess> process,
                       RankProcess::Start(global_, rank_options, gate.get()));
      outcomes_.emplace_back().rank = rank;
      progress_.emplace_back();
      stalls_.emplace_back(process->pid()).Restart(absl::Now());
      processes_.push_back(std::move(process));
    }
    return absl::OkStatus();
  }

  // Until every rank has ended. CANCELLED after a signal; no rank holds a session then.
  absl::Status WaitForAll(const TerminationSignals& signals, ProgressBar& bar) {
    while (true) {
      std::vector<pollfd> watched;
      std::vector<size_t> owners;
      for (size_t i = 0; i < processes_.size(); ++i) {
        if (!processes_[i]->running()) continue;
        watched.push_back({.fd = processes_[i]->descriptor(), .events = POLLIN, .revents = 0});
        owners.push_back(i);
      }
      // What ended the ranks may have been meant for all, and is on its way to this process too.
      if (AnyEndedBySignal() && signals.Wait(kGroupSignalPatience)) return EndAll();
      if (signals.received() && !watched.empty()) return EndAll();
      if (watched.empty()) return absl::OkStatus();
      const int ready = poll(watched.data(), watched.size(),
                             static_cast<int>(absl::ToInt64Milliseconds(kSignalInterval)));
      if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
      for (size_t i = 0; ready > 0 && i < watched.size(); ++i) {
        if (watched[i].revents != 0) TakeMessages(owners[i]);
      }
      OpenGate();
      EndWaitingForNobody();
      TellOfStalls();
      UpdateBar(bar);
    }
  }

  std::vector<RankOutcome> TakeOutcomes() { return std::move(outcomes_); }

  // Lines in rank order, each rank's in the order of delivery.
  absl::Status WriteDigests(std::FILE* file) const {
    for (const std::string& lines : digests_) {
      if (std::fwrite(lines.data(), 1, lines.size(), file) != lines.size()) break;
    }
    if (std::fflush(file) != 0 || std::ferror(file) != 0)
      return ErrnoStatus(errno == 0 ? EIO : errno,
                         absl::StrCat("cannot write ", LineText(options_.digests_path)));
    return absl::OkStatus();
  }

 private:
  static std::string LaunchNonce() {
    const char* variable = std::getenv(kLaunchNonceVariable);
    if (variable != nullptr && *variable != '\0') return variable;
    std::random_device random;
    return absl::StrFormat("%08x%08x", random(), random());
  }

  // When nobody is still on its way.
  void OpenGate() {
    size_t ended = 0;
    for (const std::unique_ptr<RankProcess>& process : processes_) ended += !process->running();
    if (ready_ + ended >= processes_.size()) gate_.Reset();
  }

  // By one that asks for an end, and not by this process. Each such rank counts once.
  bool AnyEndedBySignal() {
    const sigset_t watched = WatchedSignals();
    bool found = false;
    for (size_t i = 0; i < processes_.size(); ++i) {
      const RankProcess& process = *processes_[i];
      if (process.running() || process.end_signal() == 0 || ended_early_.contains(i)) continue;
      if (sigismember(&watched, process.end_signal()) != 1) continue;
      found = ended_by_signal_.insert(process.rank()).second || found;
    }
    return found;
  }

  absl::Status EndAll() {
    for (const auto& process : processes_) process->Terminate();
    const absl::Time deadline = absl::Now() + kRankEndPatience;
    for (const auto& process : processes_) {
      if (!process->WaitForEnd(deadline)) process->Kill();
    }
    std::vector<std::string> left;
    for (const auto& process : processes_) {
      if (process->WaitForEnd(deadline + kRankKillPatience)) continue;
      process->Abandon();
      left.push_back(absl::StrCat("rank ", process->rank(), ": ", process->end()));
    }
    return absl::CancelledError(left.empty()
                                    ? "interrupted; all ranks were ended"
                                    : absl::StrCat("interrupted; ", absl::StrJoin(left, "; ")));
  }

  void EndWaitingForNobody() {
    if (!agreement_.has_value()) return;
    for (const size_t index : agreement_->TakeOverdue(absl::Now())) {
      ended_early_[index] =
          absl::StrCat("ended, since rank ", processes_[*agreement_->culprit()]->rank(),
                       " failed before its open and this one waited for it (strict agreement)");
      processes_[index]->Terminate();
    }
  }

  // One message for all ranks that wait alike.
  void TellOfStalls() {
    const absl::Time now = absl::Now();
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (!processes_[i]->running()) continue;
      const std::optional<BlockedCall> blocked = stalls_[i].Look(now);
      if (!blocked.has_value()) continue;
      TellOfStall(processes_[i]->rank(), StallText(*blocked));
    }
  }

  void TellOfStall(uint32_t rank, const std::string& text) {
    if (told_stalls_.insert(text).second) Note(absl::StrCat("rank ", rank, ": ", text));
  }

  void TakeMessages(size_t index) {
    RankProcess& process = *processes_[index];
    stalls_[index].Restart(absl::Now());
    for (RankMessage& message : process.ReadMessages()) {
      if (std::holds_alternative<RankReady>(message)) {
        ++ready_;
      } else if (auto* progress = std::get_if<RankProgress>(&message)) {
        progress_[index] = *progress;
        if (agreement_.has_value()) agreement_->OnOpened(index);
      } else if (auto* digest = std::get_if<RankDigest>(&message)) {
        absl::StrAppend(&digests_[index], digest->line, "\n");
      } else if (auto* note = std::get_if<RankNote>(&message)) {
        Note(absl::StrCat("rank ", process.rank(), ": ", note->text));
      } else if (auto* stall = std::get_if<RankStall>(&message)) {
        stalls_[index].Told();
        TellOfStall(process.rank(), stall->text);
      } else {
        outcomes_[index].result = std::get<RankResult>(std::move(message));
      }
    }
    if (process.running()) return;
    outcomes_[index].end = process.end();
    if (process.end_signal() == SIGKILL) outcomes_[index].end += oom_.Suspicion();
    if (const auto why = ended_early_.find(index); why != ended_early_.end()) {
      outcomes_[index].end = why->second;
    }
    if (agreement_.has_value()) agreement_->OnEnded(index, absl::Now());
  }

  void UpdateBar(ProgressBar& bar) const {
    uint64_t done = 0;
    uint64_t total = 0;
    for (const RankProgress& progress : progress_) {
      done += progress.done_bytes;
      total += progress.total_bytes;
    }
    // Until a rank has a slice, nobody knows how much there is.
    if (total > 0) bar.Update(done, total);
  }

  const GlobalOptions& global_;
  const LoadOptions& options_;
  std::vector<std::unique_ptr<RankProcess>> processes_;
  // Its end lets ranks begin that wait for each other.
  UniqueFd gate_;
  size_t ready_ = 0;
  std::vector<RankProgress> progress_;
  std::vector<StallWatch> stalls_;
  std::set<std::string> told_stalls_;
  // Only where ranks wait for each other.
  std::optional<AgreementWatch> agreement_;
  // By index: why it was told to end.
  std::map<size_t, std::string> ended_early_;
  std::set<uint32_t> ended_by_signal_;
  const OomKills oom_;
  std::vector<RankOutcome> outcomes_;
  std::vector<std::string> digests_;
};

// One message for all ranks that failed alike.
void NoteErrors(const LoadReport& report) {
  std::map<std::string, std::vector<uint32_t>> ranks_by_error;
  for (const RankOutcome& outcome : report.ranks) {
    if (const std::string error = RankError(outcome); !error.empty())
      ranks_by_error[error].push_back(outcome.rank);
  }
  std::string all_errors;
  for (const auto& [error, ranks] : ranks_by_error) {
    Note(absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), ": ",
                      error));
    absl::StrAppend(&all_errors, error, "\n");
  }
  NoteHints(all_errors);
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using DigestFile = std::unique_ptr<std::FILE, FileCloser>;

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whether a new file of this path would lie in the directory, also through links to what is not
// there yet.
bool LiesIn(std::filesystem::path path, const std::string& directory) {
  std::error_code error;
  for (int links = 0; links < kLinksMax && std::filesystem::is_symlink(path, error); ++links) {
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  }
  const std::filesystem::path parent = path.parent_path();
  struct stat of_parent = {};
  struct stat of_directory = {};
  return stat(parent.empty() ? "." : parent.c_str(), &of_parent) == 0 &&
         stat(directory.c_str(), &of_directory) == 0 && IsSameFile(of_parent, of_directory);
}

// Whether the open file is one of the directory's, through links or not.
bool IsFileOf(int fd, const std::string& directory) {
  struct stat attributes = {};
  if (fstat(fd, &attributes) != 0) return false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    struct stat other = {};
    if (stat(entry.path().c_str(), &other) == 0 && IsSameFile(attributes, other)) return true;
  }
  return false;
}

// Opened before the load, so that a wrong path costs nothing. INVALID_ARGUMENT: it is a file of the
// checkpoint, which keeps its bytes: nothing is emptied before it is known to be another one.
absl::StatusOr<DigestFile> OpenDigestFile(const std::string& path, const std::string& directory) {
  if (path.empty()) return DigestFile();
  const auto refusal = absl::InvalidArgumentError(
      absl::StrCat("--digests: ", LineText(path), " lies in the checkpoint ", LineText(directory),
                   ", in which nothing is written; name a file elsewhere"));
  if (LiesIn(path, directory)) return refusal;
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (fd.valid() && IsFileOf(fd.get(), directory)) return refusal;
  struct stat attributes = {};
  DigestFile file;
  if (fd.valid() && fstat(fd.get(), &attributes) == 0 &&
      (!S_ISREG(attributes.st_mode) || ftruncate(fd.get(), 0) == 0)) {
    file.reset(fdopen(fd.get(), "w"));
  }
  if (file == nullptr) return ErrnoStatus(errno, absl::StrCat("cannot write ", LineText(path)));
  (void)fd.Release();
  return file;
}

}  // namespace

ExitCode RunLoad(const GlobalOptions& global, const LoadOptions& options,
                 const TerminationSignals& signals) {
  absl::StatusOr<DigestFile> digest_file = OpenDigestFile(options.digests_path, options.directory);
  if (!digest_file.ok()) {
    const bool wrong = absl::IsInvalidArgument(digest_file.status());
    return Fail(global, wrong ? ExitCode::kUsage : ExitCode::kFailed, digest_file.status());
  }
  RankSet ranks(global, options);
  const absl::Time begun = absl::Now();
  absl::Status status = ranks.StartAll();
  if (status.ok()) {
    ProgressBar bar("loading",
                    global.json ? ProgressBar::Style::kNone : ProgressBar::Style::kAutomatic);
    status = ranks.WaitForAll(signals, bar);
    if (status.ok()) bar.Finish();
  }
  LoadReport report;
  report.seconds = absl::ToDoubleSeconds(absl::Now() - begun);
  if (status.ok() && *digest_file != nullptr) status = ranks.WriteDigests(digest_file->get());
  if (!status.ok()) return Fail(global, ExitCode::kFailed, status);
  report.ranks = ranks.TakeOutcomes();
  report.requested = options.policy;
  report.verify = options.verify;
  NoteErrors(report);
  if (global.json) {
    PrintJson(LoadJson(report));
  } else {
    PrintText(LoadText(report));
  }
  return LoadExitCode(report);
}

}  // namespace forestage
