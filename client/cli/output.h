// What `forestage` writes: facts to standard output, everything else to standard error.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cli/exit_code.h"
#include "client/cli/global_options.h"
#include "nlohmann/json.hpp"

namespace forestage {

// Keys keep the order in which they are added.
using Json = nlohmann::ordered_json;

// The document on one line. Bytes that are not UTF-8 become U+FFFD.
std::string JsonLine(const Json& document);

// Writes to standard output and flushes, so that a reader of a pipe has it now. FinishOutput tells
// of errors. Text is for people: control characters but for line breaks and tabs, and bytes that
// are not UTF-8 are escaped (LinesText), wherever they come from.
void PrintText(absl::string_view text);
void PrintJson(const Json& document);
// A line of JSON that somebody else made.
void PrintJsonLine(absl::string_view line);

// Something did not reach standard output: whoever goes on only to have said it may stop.
bool OutputFailed();
// The exit code of a command that would end with `code`: when something did not reach standard
// output, says so and makes kFailed of kOk. To be called at the end; a second call finds nothing.
ExitCode FinishOutput(ExitCode code);

// One message on standard error, "forestage: ...", with what to do about each kind of system error
// in it, and with --json also {"error": "..."} on standard output, the message alone. Returns
// `code`.
ExitCode Fail(const GlobalOptions& options, ExitCode code, absl::string_view message);
// The same with the status' message.
ExitCode Fail(const GlobalOptions& options, ExitCode code, const absl::Status& status);

// One message on standard error that is no error; escaped as by PrintText.
void Note(absl::string_view message);
// A Note for each kind of system error that `message` names: what to do about it (ErrnoHints).
void NoteHints(absl::string_view message);

}  // namespace forestage
