#include "daemon/config_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "common/errno_status.h"
#include "common/file_open.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "common/utf8_text.h"

namespace forestage {
namespace {

constexpr size_t kFileBytesMax = kMiB;
// A file that is of another kind has something wrong in every line.
constexpr size_t kErrorsMax = 50;
// The major and minor number of /dev/null.
constexpr unsigned kNullMajor = 1;
constexpr unsigned kNullMinor = 3;

bool IsNullDevice(const struct stat& attributes) {
  return S_ISCHR(attributes.st_mode) && major(attributes.st_rdev) == kNullMajor &&
         minor(attributes.st_rdev) == kNullMinor;
}

absl::string_view KindName(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// OK: its bytes can be read at once.
absl::Status CheckKind(const std::string& path, const struct stat& attributes) {
  if (S_ISREG(attributes.st_mode) || IsNullDevice(attributes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", KindName(attributes.st_mode), ", not a regular file"));
}

// What is wrong about the bytes of a line; empty: nothing.
std::string WrongBytes(absl::string_view line) {
  for (const char c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t')
      return absl::StrFormat("byte 0x%02x is no text", static_cast<unsigned char>(c));
  }
  return IsUtf8(line) ? "" : "not UTF-8 text";
}

class Parser {
 public:
  void TakeLine(size_t number, absl::string_view line) {
    number_ = number;
    if (const std::string wrong = WrongBytes(line); !wrong.empty()) return AddError(wrong);
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') return;
    if (line[0] == ';') return AddError("a comment begins with '#', not with ';'");
    if (line[0] == '[') {
      in_section_ = true;
      return AddError(
          absl::StrCat("'", absl::StripTrailingAsciiWhitespace(line.substr(0, line.find('#'))),
                       "' begins a section; there are none, settings stand alone"));
    }
    TakeSetting(line);
  }

  ConfigFileText Take() {
    if (left_out_ > 0) {
      text_.errors.push_back(absl::StrCat("and ", left_out_, " more; is it a configuration file?"));
    }
    return std::move(text_);
  }

 private:
  void AddError(absl::string_view what) {
    if (text_.errors.size() < kErrorsMax) {
      text_.errors.push_back(absl::StrCat("line ", number_, ": ", what));
    } else {
      ++left_out_;
    }
  }

  void TakeSetting(absl::string_view line) {
    const size_t equals = line.find('=');
    const absl::string_view name =
        absl::StripAsciiWhitespace(line.substr(0, std::min(equals, line.find('#'))));
    if (name.empty()) return AddError("no name before '='");
    if (equals == absl::string_view::npos || line.find('#') < equals) {
      return AddError(
          absl::StrCat("'", name, "' has no value; write ", name, " = \"...\" on one line"));
    }
    const std::optional<std::string> value =
        TakeValue(name, absl::StripLeadingAsciiWhitespace(line.substr(equals + 1)));
    if (!value.has_value()) return;
    const auto [first, is_new] = line_of_name_.emplace(std::string(name), number_);
    if (!is_new) {
      return AddError(absl::StrCat("'", name, "' stands on line ", first->second, " already"));
    }
    text_.entries.push_back(
        {.name = std::string(name), .value = *value, .line = number_, .in_section = in_section_});
  }

  // nullopt with an error.
  std::optional<std::string> TakeValue(absl::string_view name, absl::string_view text) {
    if (absl::StartsWith(text, "\"") || absl::StartsWith(text, "'")) return TakeQuoted(name, text);
    const absl::string_view value = absl::StripAsciiWhitespace(text.substr(0, text.find('#')));
    if (value.empty()) {
      AddError(absl::StrCat("'", name, "' has no value; an empty one is written \"\""));
      return std::nullopt;
    }
    if (value[0] == '[' || value[0] == '{') {
      AddError(absl::StrCat("'", name, "' takes one value, no list or table"));
      return std::nullopt;
    }
    return std::string(value);
  }

  std::optional<std::string> TakeQuoted(absl::string_view name, absl::string_view text) {
    const char quote = text[0];
    text.remove_prefix(1);
    std::string value;
    while (!text.empty() && text[0] != quote) {
      if (quote == '"' && text[0] == '\\') {
        text.remove_prefix(1);
        if (text.empty() || (text[0] != '\\' && text[0] != '"')) {
          AddError(absl::StrCat("'", name,
                                "': '\\' stands before '\"' or '\\' only; in '...' it is a "
                                "character as any other"));
          return std::nullopt;
        }
      }
      value.push_back(text[0]);
      text.remove_prefix(1);
    }
    if (text.empty()) {
      AddError(
          absl::StrCat("'", name, "': the closing ", quote == '"' ? "\"" : "'", " is missing"));
      return std::nullopt;
    }
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(text.substr(1));
    if (!rest.empty() && rest[0] != '#') {
      AddError(absl::StrCat("'", name, "': '", rest, "' behind the value"));
      return std::nullopt;
    }
    return value;
  }

  ConfigFileText text_;
  std::map<std::string, size_t> line_of_name_;
  size_t number_ = 0;
  bool in_section_ = false;
  size_t left_out_ = 0;
};

}  // namespace

ConfigFileText ParseConfigFile(absl::string_view text) {
  // What some editors write before UTF-8.
  (void)absl::ConsumePrefix(&text, "\xef\xbb\xbf");
  Parser parser;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    (void)absl::ConsumeSuffix(&line, "\r");
    parser.TakeLine(++number, line);
  }
  return parser.Take();
}

std::string QuoteConfigValue(absl::string_view value) {
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  // First, since to open a device may do something.
  struct stat attributes = {};
  if (stat(path.c_str(), &attributes) != 0) return ErrnoStatus(errno, path);
  if (absl::Status kind = CheckKind(path, attributes); !kind.ok()) return kind;
  // It may have become a FIFO.
  const UniqueFd file = OpenForReading(path);
  if (!file.valid() || fstat(file.get(), &attributes) != 0) return ErrnoStatus(errno, path);
  if (absl::Status kind = CheckKind(path, attributes); !kind.ok()) return kind;
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(got));
    if (text.size() > kFileBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ",
                                                     FormatByteSize(kFileBytesMax),
                                                     "; is it a configuration file?"));
    }
  }
}

}  // namespace forestage
