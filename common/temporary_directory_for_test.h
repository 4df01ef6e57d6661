// A directory of its own for a test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"

#include "common/check.h"

namespace forestage {

// Where files can be cold: on a disk, never in memory as /tmp may be.
inline constexpr char kDiskForTest[] = "/var/tmp";

// Made at construction, removed with all it holds at destruction.
class TemporaryDirectoryForTest {
 public:
  explicit TemporaryDirectoryForTest(
      const std::string& parent = std::filesystem::temp_directory_path().string())
      : path_(parent + "/forestage-XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  TemporaryDirectoryForTest(const TemporaryDirectoryForTest&) = delete;
  TemporaryDirectoryForTest& operator=(const TemporaryDirectoryForTest&) = delete;
  ~TemporaryDirectoryForTest() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const { return path_ + "/" + std::string(name); }
  // Makes the directories that `name` needs.
  void Write(absl::string_view name, absl::string_view content = "") const {
    std::filesystem::create_directories(std::filesystem::path(File(name)).parent_path());
    std::ofstream(File(name), std::ios::binary) << content;
  }
  void Link(absl::string_view target, absl::string_view name) const {
    std::filesystem::create_directories(std::filesystem::path(File(name)).parent_path());
    std::filesystem::create_symlink(std::string(target), File(name));
  }
  void MakeDirectory(absl::string_view name) const {
    std::filesystem::create_directories(File(name));
  }

 private:
  std::string path_;
};

}  // namespace forestage
