#include "tests/support/slowfs/file_range.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

bool Names(absl::string_view name, absl::string_view path) {
  return name == "*" || name == path || absl::EndsWith(path, absl::StrCat("/", name));
}

// The kernel tells the thread that reads (an io_uring worker, say), tests know the process.
int ProcessOfThread(int thread) {
  std::ifstream status(absl::StrCat("/proc/", thread, "/status"));
  std::string line;
  int process = 0;
  while (std::getline(status, line)) {
    absl::string_view rest = line;
    if (absl::StartsWith(rest, "Tgid:") && absl::SimpleAtoi(rest.substr(5), &process)) break;
  }
  return process;
}

}  // namespace

bool FileRange::Touches(absl::string_view path, uint64_t offset, uint64_t size, int reader) const {
  if (!Names(name, path) || offset >= end || offset + size <= begin) return false;
  return pid == 0 || pid == reader || pid == ProcessOfThread(reader);
}

}  // namespace forestage
