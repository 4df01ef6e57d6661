// Prints what our reader makes of safetensors files, for header_differential.py.
//
// Input: any number of files, each a little-endian u32 length and the bytes. Output: a line each,
//   refused RULE
//   ok METADATA TENSOR...
// METADATA is "-" or key=value pairs joined by ",", TENSOR is name:dtype:shape:begin:end with the
// shape joined by "x"; names, keys and values in hexadecimal.
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "checkpoint/header_file_for_test.h"
#include "checkpoint/safetensors_header.h"

namespace forestage {
namespace {

std::string Verdict(absl::string_view file) {
  const UniqueFd fd = FileOfBytesForTest(file);
  const absl::StatusOr<SafetensorsHeader> header = ReadHeader(fd.get(), "file");
  if (!header.ok()) {
    const std::optional<HeaderRule> rule = HeaderRuleOf(header.status());
    return rule.has_value() ? absl::StrCat("refused ", HeaderRuleName(*rule))
                            : absl::StrCat("failed ", header.status().ToString());
  }
  std::string line = "ok ";
  if (header->metadata.has_value()) {
    absl::StrAppend(&line,
                    absl::StrJoin(*header->metadata, ",", [](std::string* out, const auto& pair) {
                      absl::StrAppend(out, absl::BytesToHexString(pair.first), "=",
                                      absl::BytesToHexString(pair.second));
                    }));
  } else {
    absl::StrAppend(&line, "-");
  }
  for (const HeaderTensor& tensor : header->tensors) {
    absl::StrAppend(&line, " ", absl::BytesToHexString(tensor.name), ":", DtypeName(tensor.dtype),
                    ":", absl::StrJoin(tensor.shape, "x"), ":", tensor.begin, ":", tensor.end);
  }
  return line;
}

int Run() {
  const std::string input((std::istreambuf_iterator<char>(std::cin)),
                          std::istreambuf_iterator<char>());
  size_t position = 0;
  while (input.size() - position >= sizeof(uint32_t)) {
    uint32_t bytes;
    std::memcpy(&bytes, input.data() + position, sizeof(bytes));
    position += sizeof(bytes);
    if (bytes > input.size() - position) return 2;
    std::cout << Verdict(absl::string_view(input).substr(position, bytes)) << "\n";
    position += bytes;
  }
  return position == input.size() ? 0 : 2;
}

}  // namespace
}  // namespace forestage

int main() { return forestage::Run(); }
