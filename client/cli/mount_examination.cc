#include "client/cli/mount_examination.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/local_catalog.h"
#include "client/src/timed_call.h"
#include <sys/stat.h>

#include "checkpoint/file_selection.h"
#include "common/errno_status.h"
#include "common/error_list.h"
#include "common/file_open.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

// A file must be so large for an advice of kAdviceBytesCap to be measured with it.
constexpr uint64_t kTestedBytesWanted = 2 * kAdviceBytesCap;

struct FileOnMount {
  std::string name;
  std::string path;
  uint64_t device = 0;
  uint64_t bytes = 0;
  uint32_t owner = 0;
  // OK: this process may read it.
  absl::Status access;
};

// The result of work(), which runs in a thread of its own and may never return; nullopt when it has
// not within `patience`. What it holds it holds by value.
template <typename T>
std::optional<T> Within(absl::Duration patience, std::function<T()> work) {
  const auto result = std::make_shared<std::optional<T>>();
  const absl::Status status = CallUntil(absl::Now() + patience, [result, work = std::move(work)] {
    result->emplace(work());
    return absl::OkStatus();
  });
  if (!status.ok()) return std::nullopt;
  return std::move(*result);
}

absl::Status SilentStatus(absl::string_view what, absl::Duration patience) {
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": the storage has not answered for ", absl::FormatDuration(patience),
                   "; look at the mount, its server and the kernel's log"));
}

absl::Status AccessOf(const std::string& path) {
  if (faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot read ", LineText(path)));
}

absl::StatusOr<std::vector<FileOnMount>> LookAtFiles(const std::string& directory) {
  ASSIGN_OR_RETURN(const FileSelection selection, SelectFiles(directory));
  std::vector<FileOnMount> files;
  std::vector<absl::Status> errors;
  for (const SelectedShard& shard : selection.shards) {
    struct stat attributes = {};
    absl::Status status;
    if (stat(shard.path.c_str(), &attributes) != 0) {
      status = ErrnoStatus(errno, absl::StrCat("cannot look at ", LineText(shard.path)));
    } else if (!S_ISREG(attributes.st_mode)) {
      status =
          absl::InvalidArgumentError(absl::StrCat(LineText(shard.path), ": not a regular file"));
    }
    if (status.ok()) {
      files.push_back({.name = shard.name,
                       .path = shard.path,
                       .device = attributes.st_dev,
                       .bytes = static_cast<uint64_t>(attributes.st_size),
                       .owner = attributes.st_uid,
                       .access = AccessOf(shard.path)});
      continue;
    }
    errors.push_back(std::move(status));
  }
  RETURN_IF_ERROR(JoinErrors(errors));
  return files;
}

// Of those that may be read, if any: the smallest that is large enough, else the largest. Requires:
// files is not empty.
const FileOnMount& FileToTestWith(const std::vector<FileOnMount>& files) {
  const FileOnMount* best = &files.front();
  for (const FileOnMount& file : files) {
    if (file.access.ok() != best->access.ok()) {
      if (file.access.ok()) best = &file;
      continue;
    }
    const bool enough = file.bytes >= kTestedBytesWanted;
    const bool best_is_enough = best->bytes >= kTestedBytesWanted;
    if (enough == best_is_enough ? (enough ? file.bytes < best->bytes : file.bytes > best->bytes)
                                 : enough) {
      best = &file;
    }
  }
  return *best;
}

absl::StatusOr<MountProbe> ProbePath(const std::string& path) {
  const UniqueFd fd = OpenForReading(path);
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open ", LineText(path)));
  absl::StatusOr<MountProbe> probe = ProbeFile(fd.get(), {.active = true});
  if (probe.ok()) return probe;
  return absl::Status(probe.status().code(),
                      absl::StrCat(LineText(path), ": ", probe.status().message()));
}

// What the tested file cannot tell of the others.
void CountUnknownFiles(const std::vector<FileOnMount>& files, ExaminedMount& mount) {
  for (const FileOnMount& file : files) {
    const Verdict rights = ResidencyRights(file.path, file.owner, mount.probe.mount.overlay);
    const bool tested = file.name == mount.tested_file;
    if (tested ? !mount.probe.mincore.no() : rights.yes()) continue;
    ++mount.files_residency_unknown;
    mount.residency_reason = tested ? mount.probe.mincore.reason : rights.reason;
  }
  if (mount.files_residency_unknown == 0 || !mount.probe.mapping.yes()) return;
  Weakness weakness = ResidencyUnknownWeakness(mount.files_residency_unknown,
                                               mount.probe.mount.overlay, mount.residency_reason);
  const auto same = std::find_if(mount.weaknesses.begin(), mount.weaknesses.end(),
                                 [&](const Weakness& other) { return other.id == weakness.id; });
  if (same != mount.weaknesses.end()) {
    *same = std::move(weakness);
  } else {
    mount.weaknesses.push_back(std::move(weakness));
  }
}

ExaminedMount ExamineMount(const std::vector<FileOnMount>& files) {
  ExaminedMount mount;
  mount.tested_file = FileToTestWith(files).name;
  absl::StatusOr<MountProbe> probe = ProbePath(FileToTestWith(files).path);
  mount.status = probe.status();
  if (!probe.ok()) return mount;
  mount.probe = *std::move(probe);
  mount.weaknesses = WeaknessesOf(mount.probe);
  CountUnknownFiles(files, mount);
  return mount;
}

// Of every file that this process may not read, without opening any.
absl::Status CheckAccess(const std::vector<FileOnMount>& files) {
  std::vector<absl::Status> statuses;
  for (const FileOnMount& file : files) statuses.push_back(file.access);
  return JoinErrors(statuses);
}

// Whether all files of the mount may be opened: it answers, and opening keeps the cache as far as
// is known. What could not be tested for an error must not hide the errors of other files.
bool MayOpenFiles(const ExaminedMount& mount) {
  return mount.status.ok() ? !mount.probe.second_open.no()
                           : !absl::IsDeadlineExceeded(mount.status);
}

void CheckFiles(const std::string& directory, const std::vector<FileOnMount>& files,
                absl::Duration patience, ExaminedCheckpoint& checkpoint) {
  checkpoint.headers_checked =
      std::all_of(checkpoint.mounts.begin(), checkpoint.mounts.end(), MayOpenFiles);
  checkpoint.soundness = CheckAccess(files);
  if (!checkpoint.headers_checked) return;
  using Reading = absl::StatusOr<std::unique_ptr<const LocalCatalog>>;
  const std::optional<Reading> read =
      Within<Reading>(patience, [directory] { return LocalCatalog::Read(directory); });
  checkpoint.soundness = read.has_value() ? read->status() : SilentStatus(directory, patience);
  if (checkpoint.soundness.ok()) checkpoint.ignored_copies = (**read)->ignored_copies();
}

}  // namespace

absl::StatusOr<ExaminedCheckpoint> ExamineCheckpoint(const std::string& directory,
                                                     absl::Duration patience) {
  std::optional<absl::StatusOr<std::vector<FileOnMount>>> looked =
      Within<absl::StatusOr<std::vector<FileOnMount>>>(
          patience, [directory] { return LookAtFiles(directory); });
  if (!looked.has_value()) return SilentStatus(directory, patience);
  ASSIGN_OR_RETURN(const std::vector<FileOnMount> files, *std::move(looked));
  // In the order of the files.
  std::vector<std::vector<FileOnMount>> groups;
  for (const FileOnMount& file : files) {
    const auto same = std::find_if(
        groups.begin(), groups.end(),
        [&](const std::vector<FileOnMount>& group) { return group.front().device == file.device; });
    if (same != groups.end()) {
      same->push_back(file);
    } else {
      groups.push_back({file});
    }
  }
  ExaminedCheckpoint checkpoint;
  for (const std::vector<FileOnMount>& group : groups) {
    ExaminedMount mount;
    std::optional<ExaminedMount> examined =
        Within<ExaminedMount>(patience, [group] { return ExamineMount(group); });
    if (examined.has_value()) {
      mount = *std::move(examined);
    } else {
      mount.tested_file = FileToTestWith(group).name;
      mount.status = SilentStatus(FileToTestWith(group).path, patience);
    }
    mount.device = group.front().device;
    mount.files = group.size();
    for (const FileOnMount& file : group) mount.bytes += file.bytes;
    checkpoint.files += mount.files;
    checkpoint.bytes += mount.bytes;
    checkpoint.mounts.push_back(std::move(mount));
  }
  CheckFiles(directory, files, patience, checkpoint);
  return checkpoint;
}

}  // namespace forestage
