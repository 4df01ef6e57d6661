#include "checkpoint/offender_list.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "simdjson.h"

namespace forestage {

std::string QuotedName(absl::string_view name) {
  if (name.size() <= kQuotedNameBytesMax) return QuotedPath(name);
  // Cut before a whole character, so that the rest stays UTF-8.
  size_t kept = kQuotedNameBytesMax;
  while (kept > 0 && (static_cast<unsigned char>(name[kept]) & 0xC0) == 0x80) --kept;
  return absl::StrCat(QuotedPath(absl::StrCat(name.substr(0, kept), "...")), " (", name.size(),
                      " bytes)");
}

std::string QuotedPath(absl::string_view path) {
  // Messages go into protocol buffers and JSON, which take UTF-8 only; file names may be anything.
  const bool utf8 = simdjson::validate_utf8(path.data(), path.size());
  return absl::StrCat("'", utf8 ? absl::Utf8SafeCEscape(path) : absl::CEscape(path), "'");
}

std::string Counted(size_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(count, " ", count == 1 ? one : many);
}

void OffenderList::Add(std::string offender) {
  ++count_;
  if (listed_.size() < kOffendersListedMax) listed_.push_back(std::move(offender));
}

std::string OffenderList::Text() const {
  std::string text = absl::StrJoin(listed_, "; ");
  if (count_ > listed_.size()) {
    absl::StrAppend(&text, listed_.empty() ? "" : "; and ", count_ - listed_.size(), " more");
  }
  return text;
}

}  // namespace forestage
