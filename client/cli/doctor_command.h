// `forestage doctor`: what slows the reading of a checkpoint here, and what to change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/daemon_stub.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "client/cli/mount_examination.h"
#include "client/cli/output.h"

namespace forestage {

struct DoctorOptions {
  std::string directory;
};

struct DoctorFindings {
  std::string directory;
  ExaminedCheckpoint checkpoint;
  // Of this process.
  uint32_t uid = 0;
  bool has_fowner = false;
  uint64_t memlock_bytes_max = 0;
  absl::Status io_uring;
  // Or why it cannot be asked.
  absl::StatusOr<DaemonStatus> daemon = absl::CancelledError("not asked");
};

// Those that no mount has: of the daemon, or where none answers of this process, in whose place one
// would be.
std::vector<Weakness> ReaderWeaknesses(const DoctorFindings& findings);

std::string DoctorText(const DoctorFindings& findings);
Json DoctorJson(const DoctorFindings& findings);

// kOk when every mount was tested, whatever its weaknesses are; kFailed when there is no
// checkpoint, or storage fails or does not answer.
ExitCode RunDoctor(const GlobalOptions& global, const DoctorOptions& options);

}  // namespace forestage
