// Reader of safetensors headers. Agrees with the reference reader on every file; the rules and
// their order are in docs/safetensors_rules.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "checkpoint/dtype.h"
#include "checkpoint/sha256.h"

namespace forestage {

// Limit of the header text in bytes, as the reference reader has it (not 100 MiB).
inline constexpr uint64_t kHeaderBytesMax = 100'000'000;

// The rule that a refused file breaks. The reference reader's error is beside it.
enum class HeaderRule {
  kTooSmall,      // HeaderTooSmall: shorter than the length field
  kTooLarge,      // HeaderTooLarge
  kHeaderLength,  // InvalidHeaderLength: the header ends beyond the file
  kUtf8,          // InvalidHeader
  kJson,          // InvalidHeaderDeserialization: syntax, schema, nesting
  kOffset,        // InvalidOffset: hole, overlap, or end before begin
  kOverflow,      // ValidationOverflow
  kMisaligned,    // MisalignedSlice: a sub-byte tensor that does not end at a byte
  kSize,          // TensorInvalidInfo: the range does not fit dtype and shape
  kCoverage,      // MetadataIncompleteBuffer: data end before or after the file does
};
// The reference reader's name of the error, "HeaderTooSmall": it stands in messages.
absl::string_view HeaderRuleName(HeaderRule rule);
// The rule in a status made here, nullopt in any other status.
std::optional<HeaderRule> HeaderRuleOf(const absl::Status& status);

struct HeaderTensor {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<uint64_t> shape;
  // Byte range in the file (not in the data buffer), end exclusive.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  // Where the data buffer begins: 8 + length of the header text.
  uint64_t data_begin = 0;
  uint64_t file_bytes = 0;
  // By (begin, end, name).
  std::vector<HeaderTensor> tensors;
  // nullopt when absent or null, as the reference has it.
  std::optional<std::map<std::string, std::string>> metadata;
  // SHA-256 of the length field and the header text.
  Sha256Digest digest = {};
};

// Checks `text` (the header without its length field) of a file of `file_bytes` bytes. `file_name`
// stands in errors, which are INVALID_ARGUMENT, name file, tensor and rule, and carry the rule.
absl::StatusOr<SafetensorsHeader> ParseHeader(absl::Span<const std::byte> text, uint64_t file_bytes,
                                              absl::string_view file_name);

// Reads and checks the header of an open file, with pread. Blocks. Beside ParseHeader's errors:
// those of fstat and pread (see ErrnoOf); INVALID_ARGUMENT for what is not a regular file. A file
// that is a git-LFS pointer, an HTML page, a zip archive (.bin, .pth) or a cut download is said to
// be one.
//
// `admit`, where there is one, is asked before a text of so many bytes is read into memory; its
// error is returned as it is.
using HeaderAdmission = std::function<absl::Status(uint64_t text_bytes)>;
absl::StatusOr<SafetensorsHeader> ReadHeader(int fd, absl::string_view file_name,
                                             const HeaderAdmission& admit = nullptr);

}  // namespace forestage
