#include "common/error_list.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace forestage {

absl::Status JoinErrors(absl::Span<const absl::Status> statuses) {
  std::vector<absl::string_view> messages;
  const absl::Status* first = nullptr;
  size_t unlisted = 0;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (first == nullptr) first = &status;
    if (messages.size() < kErrorsJoinedMax) {
      messages.push_back(status.message());
    } else {
      ++unlisted;
    }
  }
  if (first == nullptr) return absl::OkStatus();
  if (messages.size() == 1) return *first;
  return absl::Status(first->code(),
                      absl::StrCat(absl::StrJoin(messages, "\n"),
                                   unlisted > 0 ? absl::StrCat("\nand ", unlisted, " more") : ""));
}

std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", "; "}}); }

}  // namespace forestage
