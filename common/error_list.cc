#include "common/error_list.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace forestage {

absl::Status JoinErrors(absl::Span<const absl::Status> statuses) {
  std::vector<absl::string_view> messages;
  const absl::Status* first = nullptr;
  for (const absl::Status& status : statuses) {
    if (status.ok()) continue;
    if (first == nullptr) first = &status;
    messages.push_back(status.message());
  }
  if (first == nullptr) return absl::OkStatus();
  if (messages.size() == 1) return *first;
  return absl::Status(first->code(), absl::StrJoin(messages, "\n"));
}

}  // namespace forestage
