#include "client/cli/rank_options.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace forestage {
namespace {

template <typename Value, typename NameOf>
std::optional<Value> FindByName(std::initializer_list<Value> values, NameOf name_of,
                                absl::string_view name) {
  for (Value value : values) {
    if (name_of(value) == name) return value;
  }
  return std::nullopt;
}

}  // namespace

absl::string_view ShareName(Share share) { return share == Share::kAll ? "all" : "rows"; }

std::optional<Share> ShareFromName(absl::string_view name) {
  return FindByName({Share::kAll, Share::kRows}, ShareName, name);
}

std::optional<Policy> PolicyFromName(absl::string_view name) {
  return FindByName({Policy::kAuto, Policy::kNative, Policy::kRankStripedReadAhead}, PolicyName,
                    name);
}

std::optional<Agreement> AgreementFromName(absl::string_view name) {
  return FindByName({Agreement::kEager, Agreement::kStrict}, AgreementName, name);
}

std::vector<std::string> RankArguments(const GlobalOptions& global, const RankOptions& options) {
  // "--name=value", so that no value can be taken for a flag.
  std::vector<std::string> arguments = {
      kRankCommandName,
      absl::StrCat("--directory=", options.directory),
      absl::StrCat("--rank=", options.rank),
      absl::StrCat("--ranks=", options.ranks),
      absl::StrCat("--share=", ShareName(options.share)),
      absl::StrCat("--policy=", PolicyName(options.policy)),
      absl::StrCat("--agreement=", AgreementName(options.agreement)),
      absl::StrCat("--group=", options.group_name),
      absl::StrCat("--nonce=", options.launch_nonce),
      absl::StrCat("--socket=", global.socket_path),
  };
  if (options.verify) arguments.emplace_back("--verify");
  if (options.digests) arguments.emplace_back("--digests");
  if (options.own) arguments.emplace_back("--own");
  if (options.together) arguments.emplace_back("--together");
  if (!global.daemon_user.empty()) {
    arguments.push_back(absl::StrCat("--daemon-user=", global.daemon_user));
  }
  if (global.no_daemon) arguments.emplace_back("--no-daemon");
  return arguments;
}

}  // namespace forestage
