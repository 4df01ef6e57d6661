// A directory of its own for a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"

#include "common/check.h"

namespace forestage {

// Made at construction, removed with all it holds at destruction.
class TemporaryDirectoryForTest {
 public:
  TemporaryDirectoryForTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "checkpoint-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  TemporaryDirectoryForTest(const TemporaryDirectoryForTest&) = delete;
  TemporaryDirectoryForTest& operator=(const TemporaryDirectoryForTest&) = delete;
  ~TemporaryDirectoryForTest() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string PathOf(absl::string_view name) const { return path_ + "/" + std::string(name); }
  void Write(absl::string_view name, absl::string_view content = "") const {
    std::filesystem::create_directories(std::filesystem::path(PathOf(name)).parent_path());
    std::ofstream(PathOf(name), std::ios::binary) << content;
  }
  void Link(absl::string_view target, absl::string_view name) const {
    std::filesystem::create_directories(std::filesystem::path(PathOf(name)).parent_path());
    std::filesystem::create_symlink(std::string(target), PathOf(name));
  }
  void MakeDirectory(absl::string_view name) const {
    std::filesystem::create_directories(PathOf(name));
  }

 private:
  std::string path_;
};

}  // namespace forestage
