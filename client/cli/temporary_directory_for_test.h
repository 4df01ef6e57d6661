// A directory that goes with its owner; for tests only.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "common/check.h"

namespace forestage {

class TemporaryDirectoryForTest {
 public:
  TemporaryDirectoryForTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "forestage-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectoryForTest() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectoryForTest(const TemporaryDirectoryForTest&) = delete;
  TemporaryDirectoryForTest& operator=(const TemporaryDirectoryForTest&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace forestage
