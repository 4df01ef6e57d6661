#include "daemon/staging/read_error_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "daemon/limits.h"

namespace forestage {

bool ReadErrorList::Add(uint32_t shard_index, std::string message) {
  if (std::any_of(kept_.begin(), kept_.end(), [&](const Error& error) {
        return error.shard_index == shard_index && error.message == message;
      })) {
    return false;
  }
  ++count_;
  const bool first_of_shard = shards_.insert(shard_index).second;
  if (kept_.size() == kReadErrorsKept) {
    if (!first_of_shard) return false;
    const auto is_one_of_several = [this](const Error& error) {
      return std::count_if(kept_.begin(), kept_.end(), [&](const Error& other) {
               return other.shard_index == error.shard_index;
             }) > 1;
    };
    const auto last = std::find_if(kept_.rbegin(), kept_.rend(), is_one_of_several);
    if (last == kept_.rend()) return false;
    kept_.erase(std::next(last).base());
  }
  kept_.push_back({shard_index, std::move(message)});
  return true;
}

std::vector<std::string> ReadErrorList::Messages() const {
  std::vector<std::string> messages;
  messages.reserve(kept_.size() + 1);
  for (const Error& error : kept_) messages.push_back(error.message);
  if (count_ > kept_.size()) {
    messages.push_back(absl::StrCat("and ", count_ - kept_.size(), " more; reads failed in ",
                                    shards_.size(), shards_.size() == 1 ? " file" : " files"));
  }
  return messages;
}

}  // namespace forestage
