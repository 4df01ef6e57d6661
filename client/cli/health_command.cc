#include "client/cli/health_command.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/daemon_stub.h"
#include "client/cli/output.h"

namespace forestage {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);

}  // namespace

ExitCode RunHealth(const GlobalOptions& global) {
  const absl::StatusOr<std::string> word =
      DaemonStub::ForRanks(global).CheckHealth(absl::Now() + kAnswerTimeout);
  if (!word.ok()) {
    return Fail(global, IsNoDaemon(word.status()) ? ExitCode::kNoDaemon : ExitCode::kFailed,
                word.status());
  }
  if (global.json) {
    PrintJson({{"status", *word}});
  } else {
    PrintText(absl::StrCat(*word, "\n"));
  }
  return *word == "SERVING" ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace forestage
