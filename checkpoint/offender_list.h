// Texts of errors that list everything that is wrong, with names that may be any bytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace forestage {

// Names longer than this are cut in messages: a header may hold a name of 100 MB.
inline constexpr size_t kQuotedNameBytesMax = 200;
// An error names this many offenders and counts the others.
inline constexpr size_t kOffendersListedMax = 1000;

// 'name', with control characters, quotes and broken UTF-8 escaped.
std::string QuotedName(absl::string_view name);
// The same, never cut.
std::string QuotedPath(absl::string_view path);

// "1 shard", "2 shards".
std::string Counted(size_t count, absl::string_view one, absl::string_view many);

// Collects what is wrong. Not thread-safe.
class OffenderList {
 public:
  void Add(std::string offender);
  // For offenders that nobody needs to see one by one.
  void AddUnlisted(size_t count) { count_ += count; }
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  // "a; b; c" or "a; b; ...; and 17 more".
  std::string Text() const;

 private:
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

}  // namespace forestage
