// What `forestage doctor` finds out about the mounts that a checkpoint lies on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "checkpoint/catalog_assembly.h"
#include "common/mount_probe.h"
#include "common/mount_weakness.h"

namespace forestage {

struct ExaminedMount {
  // st_dev.
  uint64_t device = 0;
  // Of the checkpoint, there.
  uint64_t files = 0;
  uint64_t bytes = 0;
  // Of them, those about whose residency this process is not told the truth, and why.
  uint64_t files_residency_unknown = 0;
  std::string residency_reason;
  // The file that was opened and tested with.
  std::string tested_file;
  // Of the test; probe and weaknesses are there when it is OK.
  absl::Status status;
  MountProbe probe;
  std::vector<Weakness> weaknesses;
};

struct ExaminedCheckpoint {
  uint64_t files = 0;
  uint64_t bytes = 0;
  std::vector<ExaminedMount> mounts;
  // Whether this process may open every file and, where headers_checked, whether every header is
  // right and agrees with the index; every offender is named.
  absl::Status soundness;
  // False when a mount did not answer, or drops a file from memory when it is opened.
  bool headers_checked = false;
  // Of a sound checkpoint: see LocalCatalog.
  std::vector<IgnoredCopy> ignored_copies;
};

// Selects the checkpoint's files and probes each mount that they lie on, actively, with one file:
// the smallest that is large enough, since on some file systems the mere open drops it from memory.
// Where no mount is one of these, all headers are read and checked; else the others are only looked
// at by stat and access. Blocks on storage, but no longer than `patience` for the
// files, for each mount and for the headers: a mount that does not answer has the status
// DEADLINE_EXCEEDED, and a thread of this process stays behind in the kernel. Errors: those of
// SelectFiles; of every file that cannot be looked at; DEADLINE_EXCEEDED.
absl::StatusOr<ExaminedCheckpoint> ExamineCheckpoint(const std::string& directory,
                                                     absl::Duration patience);

}  // namespace forestage
