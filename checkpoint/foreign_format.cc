#include "checkpoint/foreign_format.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace forestage {
namespace {

// The number behind "\nsize " in a pointer; empty when there is none.
absl::string_view PointerSize(absl::string_view pointer) {
  constexpr absl::string_view kField = "\nsize ";
  const size_t field = pointer.find(kField);
  if (field == absl::string_view::npos) return {};
  const absl::string_view rest = pointer.substr(field + kField.size());
  size_t digits = 0;
  while (digits < rest.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest[digits]))) {
    ++digits;
  }
  return rest.substr(0, digits);
}

}  // namespace

std::string DescribeForeignFormat(absl::string_view begin, uint64_t file_bytes) {
  if (absl::StartsWith(begin, "version ") && absl::StrContains(begin, "git-lfs")) {
    const absl::string_view size = PointerSize(begin);
    return absl::StrCat("a git-LFS pointer, not the file itself",
                        size.empty() ? "" : absl::StrCat(" (which has ", size, " bytes)"),
                        "; run 'git lfs pull' where it was cloned");
  }
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(begin);
  if (absl::StartsWithIgnoreCase(text, "<!doctype html") ||
      absl::StartsWithIgnoreCase(text, "<html") || absl::StartsWithIgnoreCase(text, "<head")) {
    return "an HTML page, most likely the answer of a server to a failed download";
  }
  if (absl::StartsWithIgnoreCase(text, "<?xml")) {
    return "an XML document, most likely the answer of a server to a failed download";
  }
  if (absl::StartsWith(begin, "PK\x03\x04")) {
    return "a zip archive, which is what torch.save writes (.bin, .pth); convert it to safetensors";
  }
  if (absl::StartsWith(begin, "\x80\x02") || absl::StartsWith(begin, "\x80\x04")) {
    return "a Python pickle, which is what torch.save wrote before its zip archives; convert it to "
           "safetensors";
  }
  if (absl::StartsWith(begin, "GGUF")) return "a GGUF file, which is not served";
  if (file_bytes == 0) return "an empty file, most likely a download that never began";
  const bool all_zero =
      begin.size() >= 8 && begin.find_first_not_of('\0') == absl::string_view::npos;
  if (all_zero)
    return "a file that begins with zeros, as one whose space was reserved but never written";
  return "";
}

}  // namespace forestage
