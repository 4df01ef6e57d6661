#include "client/cli/blocked_call.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/name_escaping.h"
#include <sys/syscall.h>
#include <sys/uio.h>

namespace forestage {
namespace {

// Where a call has its file.
enum class FileArgument {
  kPath,          // a path first
  kPathAt,        // a directory's descriptor, then a path
  kDescriptor,    // a descriptor first
  kDescriptorAt,  // the same, and an offset as the fourth argument
};

struct FileCall {
  long number;
  const char* name;
  FileArgument file;
};

// Those that our commands make. Newer systems have only the calls with "at".
constexpr FileCall kFileCalls[] = {
#ifdef SYS_open
    {SYS_open, "open", FileArgument::kPath},
    {SYS_stat, "stat", FileArgument::kPath},
    {SYS_lstat, "stat", FileArgument::kPath},
    {SYS_access, "access", FileArgument::kPath},
    {SYS_readlink, "readlink", FileArgument::kPath},
    {SYS_mkdir, "mkdir", FileArgument::kPath},
    {SYS_rename, "rename", FileArgument::kPath},
    {SYS_unlink, "unlink", FileArgument::kPath},
#endif
    {SYS_openat, "open", FileArgument::kPathAt},
    {SYS_newfstatat, "stat", FileArgument::kPathAt},
    {SYS_statx, "stat", FileArgument::kPathAt},
    {SYS_faccessat, "access", FileArgument::kPathAt},
    {SYS_faccessat2, "access", FileArgument::kPathAt},
    {SYS_readlinkat, "readlink", FileArgument::kPathAt},
    {SYS_mkdirat, "mkdir", FileArgument::kPathAt},
    {SYS_renameat2, "rename", FileArgument::kPathAt},
    {SYS_unlinkat, "unlink", FileArgument::kPathAt},
    {SYS_name_to_handle_at, "name_to_handle_at", FileArgument::kPathAt},
    {SYS_fstat, "stat", FileArgument::kDescriptor},
    {SYS_read, "read", FileArgument::kDescriptor},
    {SYS_pread64, "read", FileArgument::kDescriptorAt},
    {SYS_readv, "read", FileArgument::kDescriptor},
    {SYS_preadv2, "read", FileArgument::kDescriptorAt},
    {SYS_write, "write", FileArgument::kDescriptor},
    {SYS_pwrite64, "write", FileArgument::kDescriptorAt},
    {SYS_getdents64, "listing", FileArgument::kDescriptor},
    {SYS_fadvise64, "read-ahead", FileArgument::kDescriptor},
    {SYS_readahead, "read-ahead", FileArgument::kDescriptor},
    {SYS_fsync, "fsync", FileArgument::kDescriptor},
    {SYS_fdatasync, "fsync", FileArgument::kDescriptor},
    {SYS_ftruncate, "truncate", FileArgument::kDescriptor},
    {SYS_fallocate, "allocate", FileArgument::kDescriptor},
};

// Empty where it cannot be read: at most the first PATH_MAX bytes.
std::string ReadText(pid_t thread, uint64_t address) {
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::string text;
  std::vector<char> page(page_bytes);
  while (text.size() < PATH_MAX) {
    // What lies on the next page may not be there.
    const uint64_t bytes = page_bytes - address % page_bytes;
    const iovec ours = {.iov_base = page.data(), .iov_len = bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process
    const iovec theirs = {.iov_base = reinterpret_cast<void*>(address), .iov_len = bytes};
    const ssize_t got = process_vm_readv(thread, &ours, 1, &theirs, 1, 0);
    if (got <= 0) return "";
    const auto end = std::find(page.begin(), page.begin() + got, '\0');
    text.append(page.begin(), end);
    if (end != page.begin() + got) return text;
    address += static_cast<uint64_t>(got);
  }
  return "";
}

// Empty for what is no file of a file system.
std::string DescriptorPath(pid_t thread, uint64_t descriptor) {
  std::array<char, PATH_MAX> target;
  const std::string link = absl::StrCat("/proc/", thread, "/fd/", static_cast<int>(descriptor));
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  if (size <= 0) return "";
  const absl::string_view path(target.data(), static_cast<size_t>(size));
  return absl::StartsWith(path, "/") && !absl::StartsWith(path, "/dev/") ? std::string(path) : "";
}

std::string FileOf(pid_t thread, FileArgument file, const std::array<uint64_t, 4>& arguments) {
  switch (file) {
    case FileArgument::kPath:
      return ReadText(thread, arguments[0]);
    case FileArgument::kPathAt: {
      const std::string path = ReadText(thread, arguments[1]);
      if (absl::StartsWith(path, "/") || static_cast<int>(arguments[0]) == AT_FDCWD) return path;
      const std::string directory = DescriptorPath(thread, arguments[0]);
      return path.empty() ? directory : absl::StrCat(directory, "/", path);
    }
    case FileArgument::kDescriptor:
    case FileArgument::kDescriptorAt:
      return DescriptorPath(thread, arguments[0]);
  }
  return "";
}

// `line` is that of /proc/PID/task/TID/syscall: "running", or the number and its six arguments. All
// is asked of the thread: the process may have lost its memory with its main thread.
std::optional<BlockedCall> ReadCall(pid_t thread, const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  int64_t number = 0;
  std::array<uint64_t, 4> arguments = {};
  if (words.size() < 7 || !absl::SimpleAtoi(words[0], &number)) return std::nullopt;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!absl::SimpleHexAtoi(words[i + 1], &arguments[i])) return std::nullopt;
  }
  const auto* const call = std::find_if(std::begin(kFileCalls), std::end(kFileCalls),
                                        [&](const FileCall& row) { return row.number == number; });
  if (call == std::end(kFileCalls)) return std::nullopt;
  std::string file = FileOf(thread, call->file, arguments);
  if (file.empty()) return std::nullopt;
  BlockedCall blocked = {.call = call->name, .file = std::move(file), .identity = line};
  if (call->file == FileArgument::kDescriptorAt) blocked.offset = arguments[3];
  return blocked;
}

}  // namespace

std::string BlockedText(const BlockedCall& blocked) {
  const std::string text = absl::StrCat(blocked.call, " of ", EscapeName(blocked.file));
  return blocked.offset.has_value() ? absl::StrCat(text, " at offset ", *blocked.offset) : text;
}

std::optional<BlockedCall> FindBlockedCall(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", process, "/task");
  for (const auto& entry : std::filesystem::directory_iterator(tasks, error)) {
    pid_t thread = 0;
    // The calling thread waits for nothing but this.
    if (absl::SimpleAtoi(entry.path().filename().string(), &thread) && thread != gettid())
      threads.push_back(thread);
  }
  // The main thread's number is the process's.
  std::stable_partition(threads.begin(), threads.end(),
                        [&](pid_t thread) { return thread == process; });
  for (const pid_t thread : threads) {
    std::ifstream file(absl::StrCat(tasks, "/", thread, "/syscall"));
    std::string line;
    if (!std::getline(file, line)) continue;
    std::optional<BlockedCall> blocked = ReadCall(thread, line);
    if (!blocked.has_value()) continue;
    blocked->identity = absl::StrCat(thread, " ", blocked->identity);
    return blocked;
  }
  return std::nullopt;
}

}  // namespace forestage
