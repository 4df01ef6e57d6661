#include "daemon/staging/read_error_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "daemon/limits.h"

namespace forestage {
namespace {

bool IsOfWholeFile(const absl::Status& status) {
  return absl::IsOutOfRange(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

bool ReadErrorList::Add(const ReadError& error) {
  if (IsOfWholeFile(error.status)) {
    if (!whole_files_.insert(error.shard_index).second) return ReplaceEndOfFile(error);
  } else if (std::any_of(kept_.begin(), kept_.end(), [&](const ReadError& other) {
               return other.shard_index == error.shard_index &&
                      other.status.message() == error.status.message();
             })) {
    return false;
  }
  ++count_;
  return Keep(error, shards_.insert(error.shard_index).second);
}

bool ReadErrorList::ReplaceEndOfFile(const ReadError& error) {
  if (!absl::IsOutOfRange(error.status)) return false;
  const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const ReadError& other) {
    return other.shard_index == error.shard_index && IsOfWholeFile(other.status);
  });
  if (known == kept_.end() || !absl::IsOutOfRange(known->status) || known->offset <= error.offset ||
      known->status == error.status) {
    return false;
  }
  *known = error;
  return true;
}

bool ReadErrorList::Keep(const ReadError& error, bool first_of_shard) {
  if (kept_.size() == kReadErrorsKept) {
    if (!first_of_shard) return false;
    const auto is_one_of_several = [this](const ReadError& other) {
      return std::count_if(kept_.begin(), kept_.end(), [&](const ReadError& another) {
               return another.shard_index == other.shard_index;
             }) > 1;
    };
    const auto last = std::find_if(kept_.rbegin(), kept_.rend(), is_one_of_several);
    if (last == kept_.rend()) return false;
    kept_.erase(std::next(last).base());
  }
  kept_.push_back(error);
  return true;
}

std::vector<std::string> ReadErrorList::Messages() const {
  std::vector<std::string> messages;
  messages.reserve(kept_.size() + 1);
  for (const ReadError& error : kept_) messages.emplace_back(error.status.message());
  if (count_ > kept_.size()) {
    messages.push_back(absl::StrCat("and ", count_ - kept_.size(), " more; reads failed in ",
                                    shards_.size(), shards_.size() == 1 ? " file" : " files"));
  }
  return messages;
}

}  // namespace forestage
