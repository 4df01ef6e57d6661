#include "checkpoint/foreign_format.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <sys/stat.h>

#include "checkpoint/safetensors_header.h"
#include "common/file_open.h"
#include "common/interruptions.h"
#include "common/unique_fd.h"

namespace forestage {
namespace {

constexpr absl::string_view kZipBegin("PK\x03\x04", 4);
constexpr size_t kZipNameLengthAt = 26;
constexpr size_t kZipNameAt = 30;
// The protocol byte, then the long integer with which torch.save began before its zip archives.
constexpr absl::string_view kTorchPickleNumber("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                                               12);

struct MagicNumber {
  absl::string_view begin;
  const char* text;
};
constexpr MagicNumber kForeignMagic[] = {
    {absl::string_view("GGUF", 4), "a GGUF file"},
    {absl::string_view("lmgg", 4), "a GGML file"},
    {absl::string_view("tjgg", 4), "a GGML file"},
    {absl::string_view("fmgg", 4), "a GGML file"},
    {absl::string_view("\x89HDF\r\n\x1a\n", 8), "an HDF5 file, as Keras writes them (.h5)"},
    {absl::string_view("\x93NUMPY", 6), "a NumPy array (.npy)"},
};

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

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

// The name of a zip archive's first entry, as far as it is there.
absl::string_view FirstZipEntry(absl::string_view begin) {
  if (begin.size() < kZipNameAt) return {};
  return begin.substr(kZipNameAt, LittleEndian(begin.substr(kZipNameLengthAt, 2)));
}

FileContent ForeignWeights(std::string text) {
  return {ContentKind::kForeignWeights, std::move(text)};
}
FileContent NoWeights(std::string text) { return {ContentKind::kNoWeights, std::move(text)}; }
FileContent FailedDownload(absl::string_view text) {
  return NoWeights(absl::StrCat(text, "; fetch it again"));
}

FileContent RecogniseZip(absl::string_view begin) {
  const absl::string_view entry = FirstZipEntry(begin);
  if (absl::EndsWith(entry, "data.pkl") || absl::EndsWith(entry, "constants.pkl")) {
    return ForeignWeights("a zip archive as torch.save writes it (.bin, .pt, .pth)");
  }
  if (absl::EndsWith(entry, ".npy")) return ForeignWeights("a NumPy archive (.npz)");
  return NoWeights("a zip archive, though not as torch.save writes it");
}

FileContent RecogniseWeights(absl::string_view begin) {
  if (absl::StartsWith(begin, kZipBegin)) return RecogniseZip(begin);
  for (const MagicNumber& magic : kForeignMagic) {
    if (absl::StartsWith(begin, magic.begin)) return ForeignWeights(magic.text);
  }
  // Of Python's pickle: the protocol, 2 to 5, behind its opcode.
  if (begin.size() >= 2 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5) {
    return ForeignWeights(absl::StartsWith(begin.substr(2), kTorchPickleNumber)
                              ? "a pickle as torch.save wrote it before its zip archives"
                              : "a Python pickle");
  }
  return {};
}

FileContent RecogniseNoWeights(absl::string_view begin, uint64_t file_bytes) {
  if (absl::StartsWith(begin, "version ") && absl::StrContains(begin, "git-lfs")) {
    const absl::string_view size = PointerSize(begin);
    return NoWeights(absl::StrCat("a git-LFS pointer, not the file itself",
                                  size.empty() ? "" : absl::StrCat(" (which has ", size, " bytes)"),
                                  "; run 'git lfs pull' where it was cloned"));
  }
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(begin);
  if (absl::StartsWithIgnoreCase(text, "<!doctype html") ||
      absl::StartsWithIgnoreCase(text, "<html") || absl::StartsWithIgnoreCase(text, "<head")) {
    return FailedDownload("an HTML page, most likely the answer of a server to a failed download");
  }
  if (absl::StartsWithIgnoreCase(text, "<?xml")) {
    return FailedDownload(
        "an XML document, most likely the answer of a server to a failed download");
  }
  if (file_bytes == 0) {
    return FailedDownload("an empty file, most likely a download that never began");
  }
  if (begin.size() >= 8 && begin.find_first_not_of('\0') == absl::string_view::npos) {
    return FailedDownload(
        "a file that begins with zeros, as one whose space was reserved but never written");
  }
  return {};
}

bool BeginsAsSafetensors(absl::string_view begin, uint64_t file_bytes) {
  if (begin.size() < 9 || begin[8] != '{') return false;
  const uint64_t header_bytes = LittleEndian(begin.substr(0, 8));
  return header_bytes <= kHeaderBytesMax && 8 + header_bytes <= file_bytes;
}

}  // namespace

FileContent RecogniseContent(absl::string_view begin, uint64_t file_bytes) {
  if (BeginsAsSafetensors(begin, file_bytes)) {
    return {ContentKind::kSafetensors, "a safetensors file by its content"};
  }
  FileContent content = RecogniseWeights(begin);
  if (content.kind == ContentKind::kUnknown) content = RecogniseNoWeights(begin, file_bytes);
  return content;
}

FileContent LookInto(const std::string& path) {
  const UniqueFd fd = OpenForReading(path);
  struct stat status;
  if (!fd.valid() || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  char begin[kForeignFormatBytes];
  Interruptions interruptions;
  ssize_t got = -1;
  do {
    got = pread(fd.get(), begin, sizeof(begin), 0);
  } while (got < 0 && interruptions.MayRetry(errno));
  if (got < 0) return {};
  return RecogniseContent(absl::string_view(begin, static_cast<size_t>(got)),
                          static_cast<uint64_t>(status.st_size));
}

std::string DescribeForeignFormat(absl::string_view begin, uint64_t file_bytes) {
  const FileContent content = RecogniseContent(begin, file_bytes);
  switch (content.kind) {
    case ContentKind::kForeignWeights:
      return absl::StrCat(content.text, ", which is not served yet: ", kForeignWeightsAdvice);
    case ContentKind::kNoWeights:
      return content.text;
    case ContentKind::kUnknown:
    case ContentKind::kSafetensors:
      return "";
  }
  return "";
}

}  // namespace forestage
