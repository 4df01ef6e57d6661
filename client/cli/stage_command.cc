#include "client/cli/stage_command.h"

#include <unistd.h>

#include <memory>
#include <random>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/byte_format.h"
#include "client/cli/name_escaping.h"
#include "client/cli/output.h"
#include "client/cli/progress_bar.h"
#include "client/cli/stall_watch.h"

#include "common/utf8_text.h"

namespace forestage {
namespace {

// How soon a signal is seen while staging.
constexpr absl::Duration kSignalInterval = absl::Milliseconds(250);
// How often a held session looks whether its daemon lives, and how long that may take: no signal is
// seen meanwhile.
constexpr absl::Duration kWatchInterval = absl::Seconds(1);
constexpr absl::Duration kWatchTimeout = absl::Milliseconds(500);
// How often the files of a held checkpoint are looked at; on network storage each look may cost a
// request a file.
constexpr absl::Duration kFilesPeriod = absl::Seconds(30);
constexpr absl::Duration kStatusTimeout = absl::Seconds(5);
constexpr absl::Duration kHealthTimeout = absl::Seconds(1);

// Finds this session again in the daemon's status; no two processes choose the same.
std::string GroupOfOwn() {
  std::random_device random;
  return absl::StrFormat("stage-%d-%08x%08x", getpid(), random(), random());
}

SessionOptions MakeSessionOptions(const GlobalOptions& global) {
  SessionOptions options;
  options.group_name = GroupOfOwn();
  options.socket_path = global.socket_path;
  options.daemon_user = global.daemon_user;
  options.policy = Policy::kRankStripedReadAhead;
  return options;
}

// A daemon that is there and refuses, or that is missing.
ExitCode NativeExitCode(const GlobalOptions& global) {
  const absl::Status health =
      DaemonStub::ForRanks(global).CheckHealth(absl::Now() + kHealthTimeout).status();
  return IsNoDaemon(health) ? ExitCode::kNoDaemon : ExitCode::kFailed;
}

ProgressFigures FiguresOf(const StagingStatus& staging) {
  ProgressFigures figures = {.done_bytes = staging.resident_bytes,
                             .total_bytes = staging.wanted_bytes,
                             .bytes_per_second = staging.bytes_per_second};
  if (staging.seconds_left.has_value()) figures.time_left = absl::Seconds(*staging.seconds_left);
  return figures;
}

// Waits as WaitUntilStaged does, but sees signals: CANCELLED.
absl::StatusOr<StagingStatus> WaitInterruptibly(const Session& session,
                                                const TerminationSignals& signals,
                                                ProgressBar& bar) {
  std::set<std::string> told;
  const auto see = [&](const StagingStatus& now) {
    bar.Update(FiguresOf(now));
    for (const StuckRead& read : now.stuck_reads) {
      const std::string place = absl::StrCat(EscapeName(read.file), " at offset ", read.offset);
      if (told.insert(place).second) Note(StallText(absl::StrCat("the daemon's read of ", place)));
    }
  };
  while (true) {
    absl::StatusOr<StagingStatus> staging =
        session.WaitUntilStaged(absl::Now() + kSignalInterval, see);
    if (!absl::IsDeadlineExceeded(staging.status())) {
      if (staging.ok()) bar.Update(FiguresOf(*staging));
      return staging;
    }
    if (signals.received()) return absl::CancelledError("interrupted before all was staged");
  }
}

// Says once, and again when it is another, which files are no longer what was staged.
class FilesWatch {
 public:
  explicit FilesWatch(const Session& session) : session_(session) {}

  void LookIfDue(absl::Time now) {
    if (now < next_) return;
    next_ = now + kFilesPeriod;
    const absl::Status status = session_.CheckFilesUnchanged();
    if (status.ok() || status == told_) return;
    told_ = status;
    Note(absl::StrCat("no longer what is held in memory: ", status.message()));
  }

 private:
  const Session& session_;
  absl::Time next_ = absl::Now() + kFilesPeriod;
  absl::Status told_;
};

// Until a signal (OK) or the loss of the daemon (UNAVAILABLE).
absl::Status Hold(const Session& session, const std::string& directory,
                  const TerminationSignals& signals) {
  FilesWatch files(session);
  while (!signals.Wait(kWatchInterval)) {
    files.LookIfDue(absl::Now());
    const absl::Status status = session.GetStagingStatus(absl::Now() + kWatchTimeout).status();
    // A daemon that is slow to answer still holds what it holds.
    if (status.ok() || absl::IsDeadlineExceeded(status)) continue;
    return absl::UnavailableError(absl::StrCat(
        "the daemon is gone or stands still (", status.message(), "), so nothing holds ",
        LineText(directory), " in memory any more; look at forestaged and run this command again"));
  }
  return absl::OkStatus();
}

// To be called while the session lives: the daemon's account of errors goes with the last one.
std::string NotReadableText(const GlobalOptions& global, const std::string& directory,
                            const std::string& group, uint64_t failed_bytes) {
  const absl::StatusOr<DaemonStatus> status =
      DaemonStub::ForAdministrators(global).GetStatus(absl::Now() + kStatusTimeout);
  std::vector<std::string> errors;
  if (status.ok()) errors = ReadErrorsOf(*status, group);
  return absl::StrCat(
      "the daemon cannot hold ", FormatBytes(failed_bytes), " of ", LineText(directory),
      " in memory: ", errors.empty() ? "see its log" : LineText(absl::StrJoin(errors, "; ")));
}

std::string StagedText(const std::string& directory, const StagingStatus& staging, double seconds) {
  return absl::StrCat(LineText(directory), ": ", FormatBytes(staging.resident_bytes), " of ",
                      FormatBytes(staging.wanted_bytes), " in memory after ",
                      FormatSeconds(seconds), "; the daemon read ", FormatBytes(staging.read_bytes),
                      " from storage\n");
}

}  // namespace

Json StageJson(const StagingStatus& staging, const StageTimes& times) {
  Json document;
  document["bytes"] = staging.wanted_bytes;
  document["bytes_read"] = staging.read_bytes;
  document["seconds"] = times.total;
  document["open_seconds"] = times.open;
  document["staging_seconds"] = staging.staging_seconds;
  document["resident_bytes"] = staging.resident_bytes;
  return document;
}

std::vector<std::string> ReadErrorsOf(const DaemonStatus& status, absl::string_view group) {
  for (const DaemonCheckpointRow& checkpoint : status.checkpoints) {
    for (const DaemonSessionRow& session : checkpoint.sessions) {
      if (session.group == group) return checkpoint.read_errors;
    }
  }
  return {};
}

ExitCode RunStage(const GlobalOptions& global, const StageOptions& options,
                  const TerminationSignals& signals) {
  const absl::Time begun = absl::Now();
  const SessionOptions session_options = MakeSessionOptions(global);
  const absl::StatusOr<std::unique_ptr<Session>> session =
      Session::Open(options.directory, session_options);
  if (!session.ok()) return Fail(global, ExitCode::kFailed, session.status());
  StageTimes times;
  times.open = absl::ToDoubleSeconds(absl::Now() - begun);
  if (const Decision decision = (*session)->decision(); decision.effective == Policy::kNative) {
    return Fail(global, NativeExitCode(global),
                absl::StrCat("nothing is staged: ", decision.reason));
  }
  ProgressBar bar("staging",
                  global.json ? ProgressBar::Style::kNone : ProgressBar::Style::kAutomatic);
  const absl::StatusOr<StagingStatus> staging = WaitInterruptibly(**session, signals, bar);
  if (!staging.ok()) {
    return Fail(global, ExitCode::kFailed,
                absl::StrCat("cannot stage ", LineText(options.directory), ": ",
                             staging.status().message()));
  }
  bar.Finish();
  if (staging->failed_bytes > 0) {
    return Fail(global, ExitCode::kFailed,
                NotReadableText(global, options.directory, session_options.group_name,
                                staging->failed_bytes));
  }
  if (const absl::Status files = (*session)->CheckFilesUnchanged(); !files.ok()) {
    return Fail(global, ExitCode::kFailed,
                absl::StrCat("what is staged of ", LineText(options.directory),
                             " is no longer what its files hold: ", files.message()));
  }
  times.total = absl::ToDoubleSeconds(absl::Now() - begun);
  if (global.json) {
    PrintJson(StageJson(*staging, times));
  } else {
    PrintText(StagedText(options.directory, *staging, times.total));
  }
  if (options.once) return ExitCode::kOk;
  if (!global.json) PrintText("held until Ctrl-C or SIGTERM\n");
  // Whoever waits for the document would wait for ever.
  if (OutputFailed()) return ExitCode::kFailed;
  if (const absl::Status held = Hold(**session, options.directory, signals); !held.ok())
    return Fail(global, ExitCode::kFailed, held);
  return ExitCode::kOk;
}

}  // namespace forestage
