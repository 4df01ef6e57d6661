#include "common/file_change.h"

#include "absl/strings/str_cat.h"

#include "common/check.h"

namespace forestage {

std::string FileChangeText(const FileStamp& then, const FileStamp& now) {
  if (now.device != then.device || now.inode != then.inode) {
    return "another file has its name now";
  }
  if (now.bytes != then.bytes) {
    return absl::StrCat("it has ", now.bytes, " bytes now and had ", then.bytes);
  }
  if (now.mtime_ns != then.mtime_ns) {
    return absl::StrCat("it was written to: its modification time is another, its ", now.bytes,
                        " bytes are as many as before");
  }
  if (now.links == 0 && then.links != 0) {
    return "it was deleted, or another file took its name; its size and modification time are as "
           "before";
  }
  if (now.ctime_ns != then.ctime_ns || now.links != then.links) {
    return "its name, links, owner or rights were changed, or it was written to and its "
           "modification time set back; its size and modification time are as before";
  }
  return "";
}

std::string FileChangedMessage(absl::string_view path, absl::string_view since,
                               const FileStamp& then, const FileStamp& now,
                               absl::string_view advice) {
  const std::string change = FileChangeText(then, now);
  CHECK(!change.empty());
  return absl::StrCat(path, ": the file was changed since ", since, ": ", change, "; ", advice);
}

}  // namespace forestage
