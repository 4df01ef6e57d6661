// Compares a part of a documentation page with what the code says; for tests only.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace forestage {

// The page has, on lines of their own, "<!-- generated: begin -->" and "<!-- generated: end -->".
// Fails when what stands between them is not `expected`. With FORESTAGE_UPDATE_DOCS=1 in the
// environment the page is corrected instead.
inline void ExpectGeneratedSection(const std::string& page_path, const std::string& expected) {
  const std::string begin_mark = "<!-- generated: begin -->\n";
  const std::string end_mark = "<!-- generated: end -->\n";
  std::ifstream input(page_path);
  ASSERT_TRUE(input.is_open()) << page_path;
  const std::string page{std::istreambuf_iterator<char>(input), std::istreambuf_iterator<char>()};
  const size_t begin = page.find(begin_mark);
  const size_t end = page.find(end_mark);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end)
      << page_path << " has lost the marks of its generated section";
  const size_t text_begin = begin + begin_mark.size();
  const char* update = std::getenv("FORESTAGE_UPDATE_DOCS");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream(page_path) << page.substr(0, text_begin) << expected << page.substr(end);
    return;
  }
  EXPECT_EQ(page.substr(text_begin, end - text_begin), expected)
      << page_path << " differs from the code; run this test with FORESTAGE_UPDATE_DOCS=1 in the "
      << "environment to correct the page, and look at the difference";
}

}  // namespace forestage
