#include "client/cli/oom_kills.h"

#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace forestage {
namespace {

std::optional<uint64_t> ReadOomKills() {
  std::ifstream file("/proc/vmstat");
  return ParseOomKills(
      std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
}

}  // namespace

std::optional<uint64_t> ParseOomKills(absl::string_view vmstat) {
  for (absl::string_view line : absl::StrSplit(vmstat, '\n')) {
    uint64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return std::nullopt;
}

OomKills::OomKills() : before_(ReadOomKills()) {}

std::string OomKills::Suspicion() const {
  const std::optional<uint64_t> now = ReadOomKills();
  if (!before_.has_value() || !now.has_value() || *now <= *before_) return "";
  return ", probably for want of memory: the kernel's OOM killer has ended processes of this node "
         "meanwhile; see its log, and memory.events or memory.oom_control of the container's "
         "cgroup for the limit";
}

}  // namespace forestage
