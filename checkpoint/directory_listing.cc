#include "checkpoint/directory_listing.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "checkpoint/offender_list.h"
#include "common/errno_status.h"

namespace forestage {
namespace {

struct DirectoryCloser {
  void operator()(DIR* directory) const { closedir(directory); }
};

FileKind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kRegular;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISFIFO(mode)) return FileKind::kFifo;
  if (S_ISSOCK(mode)) return FileKind::kSocket;
  return FileKind::kDevice;
}

std::string LinkTarget(const std::string& path) {
  char target[4096];
  const ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
  return bytes < 0 ? std::string() : std::string(target, static_cast<size_t>(bytes));
}

}  // namespace

absl::string_view FileKindName(FileKind kind) {
  switch (kind) {
    case FileKind::kRegular:
      return "a regular file";
    case FileKind::kDirectory:
      return "a directory";
    case FileKind::kFifo:
      return "a FIFO";
    case FileKind::kSocket:
      return "a socket";
    case FileKind::kDevice:
      return "a device";
    case FileKind::kMissing:
      return "missing";
    case FileKind::kDangling:
      return "a link whose target is missing";
    case FileKind::kUnknown:
      return "a file that cannot be looked at";
  }
  return "unknown";
}

std::string DanglingText(const FileLook& look) {
  return absl::StrCat(
      "a link to ", QuotedPath(look.target),
      look.error_number == ELOOP ? ", which leads in a circle (ELOOP)" : ", which does not exist");
}

FileLook LookAt(const std::string& path) {
  FileLook look;
  struct stat status;
  if (stat(path.c_str(), &status) == 0) {
    look.kind = KindOf(status.st_mode);
    return look;
  }
  look.error_number = errno;
  if (look.error_number != ENOENT && look.error_number != ELOOP && look.error_number != ENOTDIR) {
    look.kind = FileKind::kUnknown;
    return look;
  }
  if (lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
    look.kind = FileKind::kDangling;
    look.target = LinkTarget(path);
  }
  return look;
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& directory) {
  // Looked at first, so that opendir never touches a FIFO or a device.
  const FileLook look = LookAt(directory);
  if (look.kind == FileKind::kDangling) {
    return absl::NotFoundError(absl::StrCat(QuotedPath(directory), ": ", DanglingText(look)));
  }
  if (look.error_number != 0) return ErrnoStatus(look.error_number, QuotedPath(directory));
  if (look.kind != FileKind::kDirectory) {
    return absl::InvalidArgumentError(
        absl::StrCat(QuotedPath(directory), ": ", FileKindName(look.kind),
                     ", where the directory of a checkpoint is wanted"));
  }
  const std::unique_ptr<DIR, DirectoryCloser> open(opendir(directory.c_str()));
  if (open == nullptr) return ErrnoStatus(errno, absl::StrCat(QuotedPath(directory), ": opendir"));
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(open.get());
    if (entry == nullptr) break;
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoStatus(errno, absl::StrCat(QuotedPath(directory), ": readdir"));
  return names;
}

}  // namespace forestage
