// The exit codes of `forestage`; docs/cli.md and every --help list them.
#pragma once

namespace forestage {

enum class ExitCode : int {
  kOk = 0,
  // The operation failed; standard error says what to do.
  kFailed = 1,
  // Wrong flags or arguments; nothing was done.
  kUsage = 2,
  // `status`, `health` and `stage` need a daemon and there is none.
  kNoDaemon = 3,
  // `load --verify` found bytes that differ from the file's.
  kMismatch = 4,
};

}  // namespace forestage
