// The JSON text of a safetensors header, read but not yet checked against its file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "checkpoint/safetensors_header.h"

namespace forestage {

struct HeaderText {
  // In the order of the text, every name once (the last one of its name); ranges are relative to
  // the data buffer and unchecked.
  std::vector<HeaderTensor> tensors;
  std::optional<std::map<std::string, std::string>> metadata;
  // Names that occurred more than once, for messages.
  std::vector<std::string> repeated_names;
};

// Requires: `text` is valid UTF-8. INVALID_ARGUMENT says what does not follow syntax or schema.
absl::StatusOr<HeaderText> ReadHeaderText(absl::string_view text);

}  // namespace forestage
