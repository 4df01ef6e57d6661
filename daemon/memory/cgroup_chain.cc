#include "daemon/memory/cgroup_chain.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace forestage {
namespace {

// Fields of a line of mountinfo, counted from 0, and after its separator "-".
constexpr size_t kRootField = 3;
constexpr size_t kMountPointField = 4;
constexpr size_t kFirstOptionalField = 6;
constexpr size_t kTypeAfterSeparator = 1;
constexpr size_t kOptionsAfterSeparator = 3;

// Undoes the kernel's \ooo for blanks, tabs, line ends and backslashes.
std::string Unescape(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(std::min(i + 1, text.size()), 3);
    if (text[i] != '\\' || digits.size() != 3 ||
        digits.find_first_not_of("01234567") != absl::string_view::npos || digits[0] > '3') {
      plain.push_back(text[i]);
      continue;
    }
    plain.push_back(
        static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0')));
    i += 3;
  }
  return plain;
}

std::optional<CgroupMount> ParseMountLine(absl::string_view line) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
  if (fields.size() <= kFirstOptionalField) return std::nullopt;
  const auto separator =
      std::find(fields.begin() + kFirstOptionalField, fields.end(), absl::string_view("-"));
  const auto left = static_cast<size_t>(fields.end() - separator);
  if (left <= kOptionsAfterSeparator) return std::nullopt;
  CgroupMount mount = {.version = CgroupVersion::kV2,
                       .root = Unescape(fields[kRootField]),
                       .mount_point = Unescape(fields[kMountPointField])};
  if (!absl::StartsWith(mount.root, "/") || !absl::StartsWith(mount.mount_point, "/")) {
    return std::nullopt;
  }
  const absl::string_view type = separator[kTypeAfterSeparator];
  if (type == "cgroup2") return mount;
  const std::vector<absl::string_view> options =
      absl::StrSplit(separator[kOptionsAfterSeparator], ',');
  if (type != "cgroup" || !absl::c_linear_search(options, "memory")) return std::nullopt;
  mount.version = CgroupVersion::kV1;
  return mount;
}

// The names of a path, without empty ones.
std::vector<std::string> Names(absl::string_view path) {
  return absl::StrSplit(path, '/', absl::SkipEmpty());
}

// The names that lead from the mount's root to the cgroup; nullopt when it is not below it, or by a
// name that this process is not shown.
std::optional<std::vector<std::string>> NamesBelow(absl::string_view path, absl::string_view root) {
  const std::vector<std::string> all = Names(path);
  const std::vector<std::string> above = Names(root);
  if (above.size() > all.size() || !std::equal(above.begin(), above.end(), all.begin())) {
    return std::nullopt;
  }
  std::vector<std::string> below(all.begin() + static_cast<std::ptrdiff_t>(above.size()),
                                 all.end());
  if (absl::c_linear_search(below, "..")) return std::nullopt;
  return below;
}

CgroupChain MakeChain(const CgroupMount& mount, const std::vector<std::string>& names) {
  CgroupChain chain = {.version = mount.version, .directories = {mount.mount_point}};
  for (const std::string& name : names) {
    const std::string& parent = chain.directories.back();
    chain.directories.push_back(absl::StrCat(parent, absl::EndsWith(parent, "/") ? "" : "/", name));
  }
  std::reverse(chain.directories.begin(), chain.directories.end());
  return chain;
}

}  // namespace

std::vector<CgroupMembership> ParseCgroupMemberships(absl::string_view cgroup) {
  std::vector<CgroupMembership> memberships;
  for (const absl::string_view line : absl::StrSplit(cgroup, '\n')) {
    // hierarchy:controllers:path, where a path may hold colons.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (absl::c_linear_search(controllers, "memory")) {
      memberships.push_back({.version = CgroupVersion::kV1, .path = std::string(fields[2])});
    } else if (fields[0] == "0" && fields[1].empty()) {
      memberships.push_back({.version = CgroupVersion::kV2, .path = std::string(fields[2])});
    }
  }
  return memberships;
}

std::vector<CgroupMount> ParseCgroupMounts(absl::string_view mountinfo) {
  std::vector<CgroupMount> mounts;
  for (const absl::string_view line : absl::StrSplit(mountinfo, '\n')) {
    std::optional<CgroupMount> mount = ParseMountLine(line);
    if (mount.has_value()) mounts.push_back(*std::move(mount));
  }
  return mounts;
}

std::vector<CgroupChain> FindCgroupChains(const CgroupMembership& membership,
                                          const std::vector<CgroupMount>& mounts) {
  std::vector<CgroupChain> chains;
  for (auto mount = mounts.rbegin(); mount != mounts.rend(); ++mount) {
    if (mount->version != membership.version) continue;
    const auto names = NamesBelow(membership.path, mount->root);
    if (names.has_value()) chains.push_back(MakeChain(*mount, *names));
  }
  absl::c_stable_sort(chains, [](const CgroupChain& one, const CgroupChain& other) {
    return one.directories.size() > other.directories.size();
  });
  return chains;
}

}  // namespace forestage
