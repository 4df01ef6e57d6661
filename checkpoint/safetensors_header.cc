#include "checkpoint/safetensors_header.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "simdjson.h"
#include <sys/stat.h>

#include "checkpoint/foreign_format.h"
#include "checkpoint/header_text.h"
#include "checkpoint/offender_list.h"
#include "common/errno_status.h"
#include "common/interruptions.h"
#include "common/status_macros.h"

namespace forestage {
namespace {

constexpr uint64_t kLengthFieldBytes = 8;
// A header that was never sound has many; the first ones tell.
constexpr size_t kBrokenTensorsListedMax = 10;
constexpr char kRulePayload[] = "forestage.header_rule";
constexpr HeaderRule kRules[] = {HeaderRule::kTooSmall,     HeaderRule::kTooLarge,
                                 HeaderRule::kHeaderLength, HeaderRule::kUtf8,
                                 HeaderRule::kJson,         HeaderRule::kOffset,
                                 HeaderRule::kOverflow,     HeaderRule::kMisaligned,
                                 HeaderRule::kSize,         HeaderRule::kCoverage};

absl::Status RuleError(HeaderRule rule, absl::string_view file_name, absl::string_view what) {
  absl::Status status = absl::InvalidArgumentError(
      absl::StrCat(QuotedPath(file_name), ": ", what, " (", HeaderRuleName(rule), ")"));
  status.SetPayload(kRulePayload, absl::Cord(absl::StrCat(static_cast<int>(rule))));
  return status;
}

absl::Status TensorError(HeaderRule rule, absl::string_view file_name, const HeaderTensor& tensor,
                         absl::string_view what) {
  return RuleError(rule, file_name, absl::StrCat("tensor ", QuotedName(tensor.name), ": ", what));
}

absl::Status LengthError(uint64_t text_bytes, uint64_t file_bytes, absl::string_view file_name) {
  if (text_bytes > kHeaderBytesMax) {
    return RuleError(HeaderRule::kTooLarge, file_name,
                     absl::StrCat("the length field says that the header has ", text_bytes,
                                  " bytes; at most ", kHeaderBytesMax, " are allowed"));
  }
  if (kLengthFieldBytes + text_bytes > file_bytes) {
    return RuleError(
        HeaderRule::kHeaderLength, file_name,
        absl::StrCat("the header ends beyond the file, which has ", file_bytes, " bytes of the ",
                     kLengthFieldBytes + text_bytes,
                     " that length field and header need alone; fetch it again if it was cut"));
  }
  return absl::OkStatus();
}

// One tensor, where `previous` lies before it; nullptr for the first. Offsets are relative to the
// data buffer.
absl::Status CheckTensor(const HeaderTensor& tensor, const HeaderTensor* previous,
                         absl::string_view file_name) {
  const uint64_t previous_end = previous == nullptr ? 0 : previous->end;
  if (tensor.end < tensor.begin) {
    return TensorError(HeaderRule::kOffset, file_name, tensor,
                       absl::StrCat("ends at byte ", tensor.end,
                                    " of the data, before it begins at byte ", tensor.begin));
  }
  if (tensor.begin != previous_end) {
    const bool hole = tensor.begin > previous_end;
    return TensorError(
        HeaderRule::kOffset, file_name, tensor,
        absl::StrCat("begins at byte ", tensor.begin, " of the data, but ",
                     previous == nullptr ? "what lies before it" : QuotedName(previous->name),
                     " ends at ", previous_end, ": ", hole ? "a hole of " : "they overlap by ",
                     hole ? tensor.begin - previous_end : previous_end - tensor.begin, " bytes"));
  }
  // In the reference's order: a product that overflows is an error even if a later factor is 0.
  uint64_t elements = 1;
  uint64_t bits = 0;
  bool overflow = false;
  for (const uint64_t dimension : tensor.shape) {
    overflow = overflow || __builtin_mul_overflow(elements, dimension, &elements);
  }
  const uint64_t dtype_bits = DtypeBits(tensor.dtype);
  if (overflow || __builtin_mul_overflow(elements, dtype_bits, &bits)) {
    return TensorError(HeaderRule::kOverflow, file_name, tensor,
                       "the bits of its shape do not fit 64 bits of size");
  }
  if (bits % 8 != 0) {
    return TensorError(HeaderRule::kMisaligned, file_name, tensor,
                       absl::StrCat(elements, " elements of ", dtype_bits, " bits are ", bits,
                                    " bits, which is not a number of whole bytes"));
  }
  if (tensor.end - tensor.begin != bits / 8) {
    return TensorError(HeaderRule::kSize, file_name, tensor,
                       absl::StrCat(DtypeName(tensor.dtype), " of ", elements, " elements takes ",
                                    bits / 8, " bytes, but its range [", tensor.begin, ", ",
                                    tensor.end, ") has ", tensor.end - tensor.begin));
  }
  return absl::OkStatus();
}

bool RangeLess(const HeaderTensor& a, const HeaderTensor& b) {
  return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
}

// A tensor that was overwritten by another of its name leaves a hole that nothing else explains.
absl::Status MentionRepeated(const absl::Status& status, const HeaderText& text,
                             absl::string_view file_name) {
  const std::optional<HeaderRule> rule = HeaderRuleOf(status);
  if (text.repeated_names.empty() || !rule.has_value()) return status;
  OffenderList repeated;
  for (const std::string& name : text.repeated_names) repeated.Add(QuotedName(name));
  absl::Status longer = absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; names that ", QuotedPath(file_name),
                   " has more than once, where the last one counts: ", repeated.Text()));
  longer.SetPayload(kRulePayload, absl::Cord(absl::StrCat(static_cast<int>(*rule))));
  return longer;
}

// Whether the data are as long as the tensors need.
absl::Status CheckCoverage(uint64_t tensors_end, uint64_t data_begin, uint64_t file_bytes,
                           absl::string_view file_name) {
  const uint64_t data_bytes = file_bytes - data_begin;
  if (tensors_end < data_bytes) {
    return RuleError(HeaderRule::kCoverage, file_name,
                     absl::StrCat("the file has ", data_bytes,
                                  " bytes of data, but the tensors of its "
                                  "header cover ",
                                  tensors_end, ": ", data_bytes - tensors_end, " bytes too many"));
  }
  if (tensors_end > data_bytes) {
    std::string whole = absl::StrCat("header and ", tensors_end, " bytes of data");
    uint64_t whole_bytes;
    if (!__builtin_add_overflow(tensors_end, data_begin, &whole_bytes)) {
      whole = absl::StrCat(whole_bytes);
    }
    return RuleError(
        HeaderRule::kCoverage, file_name,
        absl::StrCat("a cut download: ", file_bytes, " bytes of ", whole, "; fetch it again"));
  }
  return absl::OkStatus();
}

// The first rule that is broken, with the text of each tensor that breaks one.
absl::Status CheckRanges(const std::vector<HeaderTensor>& tensors, uint64_t data_begin,
                         uint64_t file_bytes, absl::string_view file_name) {
  absl::Status first;
  OffenderList further;
  const auto add = [&](absl::Status status) {
    if (status.ok()) return;
    if (first.ok()) {
      first = std::move(status);
    } else if (further.count() < kBrokenTensorsListedMax) {
      further.Add(std::string(status.message()));
    } else {
      further.AddUnlisted(1);
    }
  };
  const HeaderTensor* previous = nullptr;
  for (const HeaderTensor& tensor : tensors) {
    add(CheckTensor(tensor, previous, file_name));
    previous = &tensor;
  }
  add(CheckCoverage(previous == nullptr ? 0 : previous->end, data_begin, file_bytes, file_name));
  if (further.empty()) return first;
  absl::Status all =
      absl::InvalidArgumentError(absl::StrCat(first.message(), "; ", further.Text()));
  all.SetPayload(kRulePayload, *first.GetPayload(kRulePayload));
  return all;
}

// `length_and_text` is what stands in the file.
absl::StatusOr<SafetensorsHeader> ParseLengthAndText(absl::Span<const std::byte> length_and_text,
                                                     uint64_t file_bytes,
                                                     absl::string_view file_name) {
  const absl::string_view text(
      reinterpret_cast<const char*>(length_and_text.data()) + kLengthFieldBytes,
      length_and_text.size() - kLengthFieldBytes);
  RETURN_IF_ERROR(LengthError(text.size(), file_bytes, file_name));
  if (!simdjson::validate_utf8(text.data(), text.size())) {
    return RuleError(HeaderRule::kUtf8, file_name, "the header is not UTF-8");
  }
  absl::StatusOr<HeaderText> read = ReadHeaderText(text);
  if (!read.ok()) return RuleError(HeaderRule::kJson, file_name, read.status().message());

  SafetensorsHeader header;
  header.data_begin = kLengthFieldBytes + text.size();
  header.file_bytes = file_bytes;
  header.tensors = std::move(read->tensors);
  header.metadata = std::move(read->metadata);
  // Official writers write in this order.
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), RangeLess)) {
    std::sort(header.tensors.begin(), header.tensors.end(), RangeLess);
  }
  const absl::Status ranges = CheckRanges(header.tensors, header.data_begin, file_bytes, file_name);
  if (!ranges.ok()) return MentionRepeated(ranges, *read, file_name);
  for (HeaderTensor& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  Sha256 sha256;
  sha256.Update(length_and_text);
  header.digest = sha256.Finish();
  return header;
}

// Reads `out` from `offset`. What is missing because the file is shorter than it was is an error.
absl::Status ReadFully(int fd, uint64_t offset, absl::Span<std::byte> out,
                       absl::string_view file_name) {
  size_t done = 0;
  Interruptions interruptions;
  while (done < out.size()) {
    const ssize_t got =
        pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && interruptions.MayRetry(errno)) continue;
    if (got < 0) {
      return ErrnoStatus(errno, absl::StrCat(QuotedPath(file_name), ": read of the header at byte ",
                                             offset + done));
    }
    if (got == 0) {
      return RuleError(
          HeaderRule::kHeaderLength, file_name,
          absl::StrCat("the file was cut to ", offset + done, " bytes while its header was read"));
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

uint64_t LittleEndian64(absl::Span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

absl::StatusOr<SafetensorsHeader> ReadHeaderOfSize(int fd, uint64_t file_bytes,
                                                   absl::string_view file_name,
                                                   const HeaderAdmission& admit) {
  if (file_bytes < kLengthFieldBytes) {
    return RuleError(HeaderRule::kTooSmall, file_name,
                     absl::StrCat("the file has ", file_bytes, " bytes, less than the ",
                                  kLengthFieldBytes, " of the length field"));
  }
  std::byte field[kLengthFieldBytes];
  RETURN_IF_ERROR(ReadFully(fd, 0, absl::MakeSpan(field), file_name));
  const uint64_t text_bytes = LittleEndian64(field);
  RETURN_IF_ERROR(LengthError(text_bytes, file_bytes, file_name));
  if (admit != nullptr) RETURN_IF_ERROR(admit(text_bytes));
  // Not initialised: it may be 100 MB, and all of it is read.
  const size_t bytes = kLengthFieldBytes + text_bytes;
  const std::unique_ptr<std::byte[]> buffer(new std::byte[bytes]);
  std::memcpy(buffer.get(), field, kLengthFieldBytes);
  RETURN_IF_ERROR(ReadFully(fd, kLengthFieldBytes,
                            absl::MakeSpan(buffer.get() + kLengthFieldBytes, text_bytes),
                            file_name));
  return ParseLengthAndText(absl::MakeConstSpan(buffer.get(), bytes), file_bytes, file_name);
}

// Says what a refused file is instead, where that can be seen.
absl::Status Explain(const absl::Status& status, int fd, uint64_t file_bytes) {
  const std::optional<HeaderRule> rule = HeaderRuleOf(status);
  if (!rule.has_value()) return status;
  char begin[kForeignFormatBytes];
  const ssize_t got = pread(fd, begin, sizeof(begin), 0);
  if (got < 0) return status;
  const std::string format =
      DescribeForeignFormat(absl::string_view(begin, static_cast<size_t>(got)), file_bytes);
  if (format.empty()) return status;
  absl::Status longer =
      absl::InvalidArgumentError(absl::StrCat(status.message(), ": this is ", format));
  longer.SetPayload(kRulePayload, absl::Cord(absl::StrCat(static_cast<int>(*rule))));
  return longer;
}

}  // namespace

absl::string_view HeaderRuleName(HeaderRule rule) {
  switch (rule) {
    case HeaderRule::kTooSmall:
      return "HeaderTooSmall";
    case HeaderRule::kTooLarge:
      return "HeaderTooLarge";
    case HeaderRule::kHeaderLength:
      return "InvalidHeaderLength";
    case HeaderRule::kUtf8:
      return "InvalidHeader";
    case HeaderRule::kJson:
      return "InvalidHeaderDeserialization";
    case HeaderRule::kOffset:
      return "InvalidOffset";
    case HeaderRule::kOverflow:
      return "ValidationOverflow";
    case HeaderRule::kMisaligned:
      return "MisalignedSlice";
    case HeaderRule::kSize:
      return "TensorInvalidInfo";
    case HeaderRule::kCoverage:
      return "MetadataIncompleteBuffer";
  }
  return "unknown";
}

std::optional<HeaderRule> HeaderRuleOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRulePayload);
  if (!payload.has_value()) return std::nullopt;
  for (const HeaderRule rule : kRules) {
    if (*payload == absl::StrCat(static_cast<int>(rule))) return rule;
  }
  return std::nullopt;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(absl::Span<const std::byte> text, uint64_t file_bytes,
                                              absl::string_view file_name) {
  RETURN_IF_ERROR(LengthError(text.size(), file_bytes, file_name));
  std::vector<std::byte> length_and_text(kLengthFieldBytes);
  length_and_text.reserve(kLengthFieldBytes + text.size());
  for (size_t i = 0; i < kLengthFieldBytes; ++i) {
    length_and_text[i] = static_cast<std::byte>((uint64_t{text.size()} >> (8 * i)) & 0xFF);
  }
  length_and_text.insert(length_and_text.end(), text.begin(), text.end());
  return ParseLengthAndText(length_and_text, file_bytes, file_name);
}

absl::StatusOr<SafetensorsHeader> ReadHeader(int fd, absl::string_view file_name,
                                             const HeaderAdmission& admit) {
  struct stat status;
  if (fstat(fd, &status) != 0)
    return ErrnoStatus(errno, absl::StrCat(QuotedPath(file_name), ": fstat"));
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(QuotedPath(file_name), ": not a regular file"));
  }
  const uint64_t file_bytes = static_cast<uint64_t>(status.st_size);
  absl::StatusOr<SafetensorsHeader> header = ReadHeaderOfSize(fd, file_bytes, file_name, admit);
  if (!header.ok()) return Explain(header.status(), fd, file_bytes);
  return header;
}

}  // namespace forestage
