#include "client/cli/doctor_command.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/cli/blocked_call.h"
#include "client/cli/byte_format.h"
#include "client/cli/ls_command.h"
#include "client/cli/name_escaping.h"
#include "client/cli/text_table.h"
#include <sys/resource.h>

#include "common/io_uring_support.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
constexpr absl::Duration kStoragePatience = absl::Seconds(10);
// So many are named, and the others counted.
constexpr size_t kCopiesListedMax = 20;

const char* QuestionOf(absl::string_view verdict) {
  if (verdict == "mapping") return "files can be mapped";
  if (verdict == "populate") return "MADV_POPULATE_READ works";
  if (verdict == "mincore") return "mincore tells the truth";
  if (verdict == "cachestat") return "cachestat tells the truth";
  if (verdict == "second_open") return "a second open keeps the cache";
  if (verdict == "faults") return "a page fault brings in 2 MiB";
  return "read-ahead advice works";
}

std::string LimitText(uint64_t bytes) {
  return bytes == RLIM_INFINITY ? "unlimited" : FormatBytes(bytes);
}

std::string OptionalBytesText(const std::optional<uint64_t>& bytes) {
  return bytes.has_value() ? FormatBytes(*bytes) : "unknown";
}

std::string WeaknessesText(const std::vector<Weakness>& weaknesses, absl::string_view indent) {
  std::string text;
  for (const Weakness& weakness : weaknesses) {
    absl::StrAppend(&text, indent, "WEAK: ", weakness.what, " (", weakness.id, ")\n", indent,
                    "  costs:  ", weakness.cost, "\n", indent, "  change: ", weakness.change, "\n");
  }
  return text;
}

std::string MountText(const ExaminedMount& mount) {
  std::string text = absl::StrCat("mount ", DeviceText(mount.device));
  const MountFacts& facts = mount.probe.mount;
  if (mount.status.ok()) {
    absl::StrAppend(
        &text, ", ", facts.type,
        facts.mount_point.empty() ? "" : absl::StrCat(" at ", EscapeName(facts.mount_point)));
  }
  absl::StrAppend(&text, ": ", FormatCount(mount.files, "file"), ", ", FormatBytes(mount.bytes),
                  "\n");
  if (!mount.status.ok()) {
    return absl::StrCat(text, "  NOT TESTED: ", mount.status.message(), "\n");
  }
  absl::StrAppend(&text, "  way of reading: ", ReadingWayName(mount.probe.way()));
  if (mount.probe.way() == ReadingWay::kFaults) {
    absl::StrAppend(&text, ", in blocks of ", FormatBytes(kFaultBlockBytes));
  } else if (mount.probe.way() != ReadingWay::kRead) {
    absl::StrAppend(&text, ", in pieces of ", FormatBytes(facts.advice_bytes_max));
  }
  absl::StrAppend(&text, "\n  read-ahead ", OptionalBytesText(facts.read_ahead.read_ahead_bytes),
                  ", largest request ", OptionalBytesText(facts.read_ahead.request_bytes_max),
                  ", one advice brought in ", OptionalBytesText(mount.probe.advice_bytes_measured),
                  "\n  tested with ", EscapeName(mount.tested_file),
                  ", of which pages were read and may have been dropped from memory\n");
  TextTable table({{"  VERDICT"}, {"ANSWER"}, {"WHY"}});
  for (const NamedVerdict& named : VerdictsOf(mount.probe)) {
    table.AddRow({absl::StrCat("  ", QuestionOf(named.name)),
                  std::string(AnswerName(named.verdict.answer)), named.verdict.reason});
  }
  absl::StrAppend(&text, table.ToString(), WeaknessesText(mount.weaknesses, "  "));
  if (mount.weaknesses.empty()) absl::StrAppend(&text, "  no weakness found\n");
  return text;
}

// Of copies that the index decided against, said once for all.
std::string CopiesText(const std::vector<IgnoredCopy>& copies) {
  if (copies.empty()) return "";
  std::string text = absl::StrCat("WARNING: ", FormatCount(copies.size(), "tensor"),
                                  copies.size() == 1 ? " lies" : " lie",
                                  " in another shard, too, than the one that the index names; the "
                                  "index decides, and the copies "
                                  "are ignored:\n");
  for (size_t i = 0; i < copies.size() && i < kCopiesListedMax; ++i) {
    absl::StrAppend(&text, "  ", EscapeName(copies[i].tensor), ": served from ",
                    EscapeName(copies[i].served_from), ", ignored in ", EscapeName(copies[i].shard),
                    copies[i].differs ? ", where dtype or shape differ" : "", "\n");
  }
  if (copies.size() > kCopiesListedMax) {
    absl::StrAppend(&text, "  and ", copies.size() - kCopiesListedMax, " more\n");
  }
  return absl::StrCat(text, "  engines that read without the index may take the copies\n");
}

std::string SoundnessText(const ExaminedCheckpoint& checkpoint) {
  if (!checkpoint.soundness.ok()) {
    return absl::StrCat("files: BROKEN:\n  ",
                        absl::StrReplaceAll(checkpoint.soundness.message(), {{"\n", "\n  "}}),
                        "\n");
  }
  return checkpoint.headers_checked
             ? absl::StrCat("files: sound: every header was read and agrees with the others\n",
                            CopiesText(checkpoint.ignored_copies))
             : "files: may be read; headers were not looked at, since opening a file may drop it "
               "from memory\n";
}

std::string DaemonText(const DoctorFindings& findings) {
  if (!findings.daemon.ok()) {
    return absl::StrCat("daemon: ", findings.daemon.status().message(), "\nio_uring here: ",
                        findings.io_uring.ok() ? "yes" : findings.io_uring.message(),
                        "; a daemon started here would have the same\n");
  }
  std::string text = absl::StrCat("daemon: forestaged ", findings.daemon->version, ", pid ",
                                  findings.daemon->pid, ", reads with ", findings.daemon->reader,
                                  ": ", findings.daemon->reader_reason, "\n");
  for (const DaemonMountRow& row : findings.daemon->mounts) {
    const bool ours = std::any_of(
        findings.checkpoint.mounts.begin(), findings.checkpoint.mounts.end(),
        [&](const ExaminedMount& mount) { return DeviceText(mount.device) == row.device; });
    if (!ours) continue;
    absl::StrAppend(
        &text, "  it has read from mount ", row.device, " by ", row.way, ": ", "files were opened ",
        FormatCount(row.files_opened, "time"), " since its start, and ",
        FormatCount(row.files_residency_unknown, "time"),
        " it could not tell what of them is in memory",
        row.read_bytes_per_second_max == 0
            ? ""
            : absl::StrCat("; it reads at most ", FormatBytes(row.read_bytes_per_second_max),
                           "/s there (read-bytes-per-second-max)"),
        "\n");
  }
  return text;
}

Json WeaknessesJson(const std::vector<Weakness>& weaknesses) {
  Json list = Json::array();
  for (const Weakness& weakness : weaknesses) {
    list.push_back({{"id", weakness.id},
                    {"what", weakness.what},
                    {"cost", weakness.cost},
                    {"change", weakness.change}});
  }
  return list;
}

Json OptionalJson(const std::optional<uint64_t>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json MountJson(const ExaminedMount& mount) {
  Json document;
  document["device"] = DeviceText(mount.device);
  document["files"] = mount.files;
  document["bytes"] = mount.bytes;
  document["tested_file"] = mount.tested_file;
  if (!mount.status.ok()) {
    document["error"] = std::string(mount.status.message());
    return document;
  }
  const MountFacts& facts = mount.probe.mount;
  document["type"] = facts.type;
  document["mount_point"] = facts.mount_point;
  document["overlay"] = facts.overlay;
  document["way"] = std::string(ReadingWayName(mount.probe.way()));
  document["advice_bytes"] = facts.advice_bytes_max;
  document["advice_bytes_measured"] = OptionalJson(mount.probe.advice_bytes_measured);
  document["read_ahead_bytes"] = OptionalJson(facts.read_ahead.read_ahead_bytes);
  document["request_bytes_max"] = OptionalJson(facts.read_ahead.request_bytes_max);
  document["optimal_io_bytes"] = OptionalJson(facts.read_ahead.optimal_io_bytes);
  document["files_residency_unknown"] = mount.files_residency_unknown;
  Json verdicts;
  for (const NamedVerdict& named : VerdictsOf(mount.probe)) {
    verdicts[std::string(named.name)] = {{"answer", std::string(AnswerName(named.verdict.answer))},
                                         {"reason", named.verdict.reason}};
  }
  document["verdicts"] = std::move(verdicts);
  document["weaknesses"] = WeaknessesJson(mount.weaknesses);
  return document;
}

Json DaemonJson(const absl::StatusOr<DaemonStatus>& daemon) {
  Json document;
  // Null when it was not asked, also since somebody else listens on its socket.
  document["running"] =
      absl::IsCancelled(daemon.status()) || absl::IsUnauthenticated(daemon.status())
          ? Json(nullptr)
          : Json(daemon.ok() || !IsNoDaemon(daemon.status()));
  if (!daemon.ok()) {
    document["reason"] = std::string(daemon.status().message());
    return document;
  }
  document["version"] = daemon->version;
  document["reader"] = daemon->reader;
  document["reader_reason"] = daemon->reader_reason;
  Json mounts = Json::array();
  for (const DaemonMountRow& row : daemon->mounts) {
    mounts.push_back({{"device", row.device},
                      {"way", row.way},
                      {"files_opened", row.files_opened},
                      {"files_residency_unknown", row.files_residency_unknown},
                      {"read_bytes_per_second_max", row.read_bytes_per_second_max}});
  }
  document["mounts"] = std::move(mounts);
  return document;
}

// With the call that a thread which was left waiting still waits for.
absl::Status NamingWhatHangs(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  const std::optional<BlockedCall> blocked = FindBlockedCall(getpid());
  if (!blocked.has_value()) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), "; ", BlockedText(*blocked), " has not come back"));
}

}  // namespace

std::vector<Weakness> ReaderWeaknesses(const DoctorFindings& findings) {
  if (!findings.daemon.ok()) return WeaknessesOfIoUring(findings.io_uring);
  const std::string& reason = findings.daemon->reader_reason;
  if (findings.daemon->reader != "threads" || !absl::StartsWith(reason, kIoUringUnavailable)) {
    return {};
  }
  return WeaknessesOfIoUring(absl::UnavailableError(reason));
}

std::string DoctorText(const DoctorFindings& findings) {
  const ExaminedCheckpoint& checkpoint = findings.checkpoint;
  std::string text = absl::StrCat(
      EscapeName(findings.directory), ": ", FormatCount(checkpoint.files, "file"), ", ",
      FormatBytes(checkpoint.bytes), ", on ", FormatCount(checkpoint.mounts.size(), "mount"),
      "\nlooked at as uid ", findings.uid, findings.has_fowner ? " with" : " without",
      " CAP_FOWNER, with a locked memory limit of ", LimitText(findings.memlock_bytes_max), "\n\n");
  for (const ExaminedMount& mount : checkpoint.mounts) {
    absl::StrAppend(&text, MountText(mount), "\n");
  }
  absl::StrAppend(&text, SoundnessText(checkpoint), DaemonText(findings),
                  WeaknessesText(ReaderWeaknesses(findings), ""));
  return text;
}

Json DoctorJson(const DoctorFindings& findings) {
  Json document;
  document["directory"] = findings.directory;
  document["files"] = findings.checkpoint.files;
  document["bytes"] = findings.checkpoint.bytes;
  document["process"] = {
      {"uid", findings.uid},
      {"cap_fowner", findings.has_fowner},
      {"memlock_bytes_max", findings.memlock_bytes_max == RLIM_INFINITY
                                ? Json(nullptr)
                                : Json(findings.memlock_bytes_max)},
      {"io_uring", findings.io_uring.ok()},
      {"io_uring_reason", findings.io_uring.ok() ? "this kernel allows it"
                                                 : std::string(findings.io_uring.message())}};
  Json mounts = Json::array();
  for (const ExaminedMount& mount : findings.checkpoint.mounts) mounts.push_back(MountJson(mount));
  document["mounts"] = std::move(mounts);
  document["sound"] = findings.checkpoint.soundness.ok();
  document["headers_checked"] = findings.checkpoint.headers_checked;
  if (!findings.checkpoint.soundness.ok()) {
    document["error"] = std::string(findings.checkpoint.soundness.message());
  }
  document["ignored_copies"] = Json::array();
  for (const IgnoredCopy& copy : findings.checkpoint.ignored_copies) {
    document["ignored_copies"].push_back(CopyJson(copy));
  }
  document["daemon"] = DaemonJson(findings.daemon);
  document["weaknesses"] = WeaknessesJson(ReaderWeaknesses(findings));
  return document;
}

ExitCode RunDoctor(const GlobalOptions& global, const DoctorOptions& options) {
  DoctorFindings findings;
  findings.directory = options.directory;
  absl::StatusOr<ExaminedCheckpoint> examined =
      ExamineCheckpoint(options.directory, kStoragePatience);
  if (!examined.ok()) return Fail(global, ExitCode::kFailed, NamingWhatHangs(examined.status()));
  findings.checkpoint = *std::move(examined);
  for (ExaminedMount& mount : findings.checkpoint.mounts) {
    mount.status = NamingWhatHangs(mount.status);
  }
  findings.checkpoint.soundness = NamingWhatHangs(findings.checkpoint.soundness);
  findings.uid = geteuid();
  findings.has_fowner = HasFownerCapability();
  findings.memlock_bytes_max = MemlockBytesMax();
  findings.io_uring = CheckIoUring();
  if (global.no_daemon) {
    findings.daemon = absl::CancelledError("not asked, by --no-daemon");
  } else {
    findings.daemon = DaemonStub::ForAdministrators(global).GetStatus(absl::Now() + kAnswerTimeout);
  }
  if (global.json) {
    PrintJson(DoctorJson(findings));
  } else {
    PrintText(DoctorText(findings));
  }
  for (const ExaminedMount& mount : findings.checkpoint.mounts) {
    if (!mount.status.ok()) {
      Note(mount.status.message());
      NoteHints(
          absl::StrCat(mount.status.message(), "\n", findings.checkpoint.soundness.message()));
      return ExitCode::kFailed;
    }
  }
  if (findings.checkpoint.soundness.ok()) return ExitCode::kOk;
  Note(absl::StrCat(LineText(options.directory), ": this checkpoint cannot be loaded; see above"));
  NoteHints(findings.checkpoint.soundness.message());
  return ExitCode::kFailed;
}

}  // namespace forestage
