// Any bytes as a configuration file: what is taken from it can be written and read again.
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/check.h"
#include "daemon/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace forestage;  // NOLINT: a fuzz target is a program of its own
  const ConfigFileText text =
      ParseConfigFile(absl::string_view(reinterpret_cast<const char*>(input), size));
  size_t line = 0;
  // Marks of the byte order are left out at the begin of a file only.
  std::string again = "\n";
  for (const ConfigFileEntry& entry : text.entries) {
    CHECK(entry.line > line && !entry.name.empty());
    line = entry.line;
    absl::StrAppend(&again, entry.name, " = ", QuoteConfigValue(entry.value), "\n");
  }
  const ConfigFileText second = ParseConfigFile(again);
  CHECK(second.errors.empty() && second.entries.size() == text.entries.size());
  for (size_t i = 0; i < text.entries.size(); ++i) {
    CHECK(second.entries[i].name == text.entries[i].name);
    CHECK(second.entries[i].value == text.entries[i].value);
  }
  return 0;
}
