#include "daemon/delivery/socket_group.h"

#include <grp.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/errno_status.h"

namespace forestage {
namespace {

constexpr size_t kEntryBytesFirst = 1024;
// A group with so many members is no group for a socket.
constexpr size_t kEntryBytesMax = 1024 * 1024;

}  // namespace

absl::StatusOr<std::optional<gid_t>> ResolveSocketGroup(const std::string& group) {
  if (group.empty()) return std::optional<gid_t>();
  uint32_t number = 0;
  // A name may not be a number, so there is no doubt; -1 means "leave as it is" to chown.
  if (absl::SimpleAtoi(group, &number) && number != static_cast<uint32_t>(-1)) {
    return std::optional<gid_t>(number);
  }
  for (size_t bytes = kEntryBytesFirst; bytes <= kEntryBytesMax; bytes *= 2) {
    std::vector<char> buffer(bytes);
    struct group entry = {};
    struct group* found = nullptr;
    const int error = getgrnam_r(group.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE) continue;
    if (found != nullptr) return std::optional<gid_t>(entry.gr_gid);
    if (error != 0 && error != ENOENT && error != ESRCH) {
      return ErrnoStatus(error, absl::StrCat("socket-group: looking up group ", group));
    }
    break;
  }
  return absl::NotFoundError(
      absl::StrCat("socket-group: there is no group \"", group,
                   "\" on this system; make it (groupadd), or give the number of one"));
}

}  // namespace forestage
