#include "client/cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/cli/errno_hint.h"

#include "common/utf8_text.h"

namespace forestage {
namespace {

// The errno of the first write to standard output that failed. Of the main thread, as all output.
int output_error = 0;

void Print(absl::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (output_error == 0) output_error = errno != 0 ? errno : EIO;
}

}  // namespace

std::string JsonLine(const Json& document) {
  return absl::StrCat(document.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

void PrintText(absl::string_view text) { Print(LinesText(text)); }

bool OutputFailed() { return output_error != 0; }

ExitCode FinishOutput(ExitCode code) {
  if (output_error == 0) return code;
  Note(absl::StrCat("standard output: ", std::strerror(output_error)));
  output_error = 0;
  return code == ExitCode::kOk ? ExitCode::kFailed : code;
}

void PrintJson(const Json& document) { Print(JsonLine(document)); }

void PrintJsonLine(absl::string_view line) { Print(absl::StrCat(line, "\n")); }

ExitCode Fail(const GlobalOptions& options, ExitCode code, absl::string_view message) {
  Note(message);
  NoteHints(message);
  if (options.json) PrintJson({{"error", std::string(message)}});
  return code;
}

ExitCode Fail(const GlobalOptions& options, ExitCode code, const absl::Status& status) {
  return Fail(options, code, status.message());
}

void Note(absl::string_view message) {
  const std::string line = absl::StrCat("forestage: ", LinesText(message), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void NoteHints(absl::string_view message) {
  for (const std::string& hint : ErrnoHints(message, geteuid())) Note(hint);
}

}  // namespace forestage
