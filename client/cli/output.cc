#include "client/cli/output.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace forestage {

std::string JsonLine(const Json& document) {
  return absl::StrCat(document.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

void PrintText(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void PrintJson(const Json& document) { PrintText(JsonLine(document)); }

ExitCode Fail(const GlobalOptions& options, ExitCode code, absl::string_view message) {
  Note(message);
  if (options.json) PrintJson({{"error", std::string(message)}});
  return code;
}

ExitCode Fail(const GlobalOptions& options, ExitCode code, const absl::Status& status) {
  return Fail(options, code, status.message());
}

void Note(absl::string_view message) {
  const std::string line = absl::StrCat("forestage: ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace forestage
