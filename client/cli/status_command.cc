#include "client/cli/status_command.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/byte_format.h"
#include "client/cli/name_escaping.h"
#include "client/cli/output.h"
#include "client/cli/text_table.h"

#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

std::string StateText(const DaemonCheckpointRow& checkpoint) {
  if (checkpoint.failed_bytes > 0)
    return absl::StrCat(FormatBytes(checkpoint.failed_bytes), " FAILED");
  return checkpoint.complete ? "staged" : "staging";
}

std::string SessionsText(const DaemonCheckpointRow& checkpoint) {
  using Align = TextTable::Align;
  TextTable table({{"  GROUP"},
                   {"RANK", Align::kRight},
                   {"PID", Align::kRight},
                   {"POLICY"},
                   {"AGE", Align::kRight},
                   {"CONSUMED", Align::kRight},
                   {"MAJOR FAULTS", Align::kRight},
                   {"REASON"}});
  for (const DaemonSessionRow& session : checkpoint.sessions) {
    table.AddRow({absl::StrCat("  ", EscapeName(session.group)),
                  absl::StrCat(session.local_rank, "/", session.local_size),
                  absl::StrCat(session.pid), session.policy.empty() ? "undecided" : session.policy,
                  FormatSeconds(session.age_seconds), FormatBytes(session.consumed_bytes),
                  absl::StrCat(session.major_faults), session.reason});
  }
  return table.ToString();
}

// ", 1.20 GiB/s, 0.427 s left"; empty when nothing is to come.
std::string PaceText(const DaemonCheckpointRow& checkpoint) {
  if (checkpoint.complete || checkpoint.wanted_bytes == 0) return "";
  if (checkpoint.bytes_per_second <= 0) return ", nothing comes now";
  std::string text =
      absl::StrCat(", ", FormatBytes(static_cast<uint64_t>(checkpoint.bytes_per_second)), "/s now");
  if (checkpoint.seconds_left.has_value())
    absl::StrAppend(&text, ", ", FormatSeconds(*checkpoint.seconds_left), " left");
  return text;
}

std::string CheckpointText(const DaemonCheckpointRow& checkpoint) {
  std::string text = absl::StrCat(EscapeName(checkpoint.path), ": ", StateText(checkpoint), ", ",
                                  FormatBytes(checkpoint.resident_bytes), " of ",
                                  FormatBytes(checkpoint.wanted_bytes), " wanted in memory, ",
                                  FormatBytes(checkpoint.read_bytes), " read from storage in ",
                                  FormatSeconds(checkpoint.staging_seconds), PaceText(checkpoint),
                                  "\n  ", FormatCount(checkpoint.tensor_count, "tensor"), " in ",
                                  FormatCount(checkpoint.shard_count, "shard"), ", ",
                                  FormatBytes(checkpoint.total_bytes), "\n");
  for (const StuckRead& read : checkpoint.stuck_reads) {
    absl::StrAppend(&text, "  STUCK: read of ", EscapeName(read.file), " at offset ", read.offset,
                    ", ", FormatBytes(read.bytes), ", has not come back for ",
                    FormatSeconds(read.seconds), "\n");
  }
  for (const std::string& error : checkpoint.read_errors)
    absl::StrAppend(&text, "  failed: ", LineText(error), "\n");
  if (!checkpoint.sessions.empty()) absl::StrAppend(&text, SessionsText(checkpoint));
  return text;
}

std::string FlightText(const DaemonMountRow& mount) {
  if (mount.in_flight_limit_bytes == 0) return "none";
  std::string text = absl::StrCat(FormatBytes(mount.in_flight_bytes), " of ",
                                  FormatBytes(mount.in_flight_limit_bytes));
  if (mount.read_bytes_per_second_max > 0) {
    absl::StrAppend(&text, ", ", mount.held_back ? "held back to " : "at most ",
                    FormatBytes(mount.read_bytes_per_second_max), "/s");
  }
  if (mount.stuck_bytes > 0) {
    absl::StrAppend(&text, ", ", FormatBytes(mount.stuck_bytes), " STUCK");
  }
  return text;
}

std::string MountsText(const std::vector<DaemonMountRow>& mounts) {
  TextTable table({{"MOUNT"},
                   {"DEVICE"},
                   {"TYPE"},
                   {"READ BY"},
                   {"ADVICE", TextTable::Align::kRight},
                   {"FILES OPENED", TextTable::Align::kRight},
                   {"IN FLIGHT"},
                   {"WEAKNESSES"}});
  for (const DaemonMountRow& mount : mounts) {
    table.AddRow(
        {mount.mount_point.empty() ? "(in another container)" : EscapeName(mount.mount_point),
         mount.device, mount.type, mount.way, FormatBytes(mount.advice_bytes),
         absl::StrCat(mount.files_opened), FlightText(mount),
         mount.weaknesses.empty() ? "none" : absl::StrJoin(mount.weaknesses, ", ")});
  }
  return table.ToString();
}

std::string MemoryText(const DaemonStatus& status) {
  std::string text;
  if (status.memory_available_bytes.has_value()) {
    absl::StrAppend(&text, "memory: ", FormatBytes(*status.memory_available_bytes),
                    " for a further checkpoint, ", FormatBytes(status.memory_leased_bytes),
                    " leased; bound by ", status.memory_bound, "\n");
  }
  if (status.user_bytes_max.has_value() || status.users.size() > 1) {
    for (const DaemonUserRow& user : status.users) {
      absl::StrAppend(&text, "memory: uid ", user.uid, " has ", FormatBytes(user.staged_bytes),
                      " staged",
                      status.user_bytes_max.has_value()
                          ? absl::StrCat(" of ", FormatBytes(*status.user_bytes_max))
                          : "",
                      "\n");
    }
  }
  for (const std::string& unknown : status.memory_unknown)
    absl::StrAppend(&text, "memory: not known: ", unknown, "\n");
  return text;
}

}  // namespace

std::string StatusText(const DaemonStatus& status) {
  std::string text = absl::StrCat(
      "forestaged ", status.version, ", pid ", status.pid, ", up ",
      FormatSeconds(status.uptime_seconds), status.draining ? ", DRAINING" : "", "\nreads with ",
      status.reader, status.reader_reason.empty() ? "" : ": ", status.reader_reason,
      "\nmetrics: ", status.metrics_address.empty() ? "off" : status.metrics_address, "\n",
      MemoryText(status));
  if (!status.mounts.empty()) absl::StrAppend(&text, "\n", MountsText(status.mounts));
  if (status.checkpoints.empty()) absl::StrAppend(&text, "\nno checkpoint is staged\n");
  for (const DaemonCheckpointRow& checkpoint : status.checkpoints)
    absl::StrAppend(&text, "\n", CheckpointText(checkpoint));
  return text;
}

ExitCode RunStatus(const GlobalOptions& global) {
  const absl::StatusOr<DaemonStatus> status =
      DaemonStub::ForAdministrators(global).GetStatus(absl::Now() + kAnswerTimeout);
  if (!status.ok()) {
    return Fail(global, IsNoDaemon(status.status()) ? ExitCode::kNoDaemon : ExitCode::kFailed,
                status.status());
  }
  if (global.json) {
    PrintJsonLine(status->json);
  } else {
    PrintText(StatusText(*status));
  }
  std::string errors;
  for (const DaemonCheckpointRow& checkpoint : status->checkpoints)
    absl::StrAppend(&errors, absl::StrJoin(checkpoint.read_errors, "\n"), "\n");
  NoteHints(errors);
  return ExitCode::kOk;
}

}  // namespace forestage
