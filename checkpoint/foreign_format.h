// Recognises what people take for a weight file of ours and is none, by its content: names lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace forestage {

// How much of a file's beginning is looked at.
inline constexpr size_t kForeignFormatBytes = 512;
// What to do with weights of other formats.
inline constexpr char kForeignWeightsAdvice[] =
    "load them with the engine's own loader, or convert them to safetensors, for instance by "
    "save_pretrained(..., safe_serialization=True)";

enum class ContentKind {
  // Nothing that is known.
  kUnknown,
  // Weights of a format that is not served yet.
  kForeignWeights,
  // No weights at all: a pointer, an error page, reserved space.
  kNoWeights,
  // Begins as a safetensors file does. What it holds was not checked.
  kSafetensors,
};

struct FileContent {
  ContentKind kind = ContentKind::kUnknown;
  // "a zip archive as torch.save writes it"; empty for kUnknown.
  std::string text;
};

// What a file is, from its first kForeignFormatBytes bytes (or all, when it has fewer).
FileContent RecogniseContent(absl::string_view begin, uint64_t file_bytes);

// The same of a file by its path. kUnknown for what is no regular file or cannot be read. Never
// hangs on a FIFO; blocks on the file system.
FileContent LookInto(const std::string& path);

// What a refused file looks like and what to do, "a git-LFS pointer ...", from its first bytes;
// empty when it looks like nothing that is known.
std::string DescribeForeignFormat(absl::string_view begin, uint64_t file_bytes);

}  // namespace forestage
