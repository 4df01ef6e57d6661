#include "daemon/session/session_terms.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "common/status_macros.h"
#include "daemon/limits.h"

namespace forestage {
namespace {

absl::Status CheckLength(absl::string_view field, absl::string_view value, size_t bytes_max) {
  if (value.size() <= bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", value.size(), " bytes; at most ", bytes_max, " are allowed"));
}

absl::Status CheckShard(size_t index, const ShardTerms& shard) {
  const absl::string_view name = shard.name;
  if (name.empty() || name.size() > kShardNameBytesMax || name == "." || name == ".." ||
      name.find('/') != absl::string_view::npos || name.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shards[", index, "].name \"", absl::CEscape(name.substr(0, 300)),
        "\" is no file name: 1 to ", kShardNameBytesMax, " bytes without NUL and '/'"));
  }
  if (shard.size_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("shards[", index, "].size_bytes is ", shard.size_bytes, ", beyond any file"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSessionTerms(const SessionTerms& terms) {
  if (terms.group_name.empty()) return absl::InvalidArgumentError("group.name is empty");
  RETURN_IF_ERROR(CheckLength("group.name", terms.group_name, kGroupNameBytesMax));
  RETURN_IF_ERROR(CheckLength("group.launch_nonce", terms.launch_nonce, kGroupNameBytesMax));
  RETURN_IF_ERROR(CheckLength("path", terms.path, kPathLabelBytesMax));
  RETURN_IF_ERROR(CheckLength("client.version", terms.client_version, kClientTextBytesMax));
  RETURN_IF_ERROR(CheckLength("client.command", terms.client_command, kClientTextBytesMax));
  RETURN_IF_ERROR(CheckLength("client.device_uuid", terms.device_uuid, kClientTextBytesMax));
  RETURN_IF_ERROR(CheckLength("client.cpu_list", terms.cpu_list, kClientTextBytesMax));
  if (terms.local_size == 0 || terms.local_size > kLocalSizeMax) {
    return absl::InvalidArgumentError(absl::StrCat("group.local_size is ", terms.local_size,
                                                   "; 1 to ", kLocalSizeMax, " are allowed"));
  }
  if (terms.local_rank >= terms.local_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local_rank ", terms.local_rank, " is not below group.local_size ", terms.local_size));
  }
  if (terms.agreement_timeout > kAgreementTimeoutMax) {
    return absl::InvalidArgumentError(absl::StrCat("agreement_timeout_ms is above ",
                                                   absl::ToInt64Milliseconds(kAgreementTimeoutMax),
                                                   " (one hour)"));
  }
  if (terms.shards.empty()) return absl::InvalidArgumentError("shards is empty");
  if (terms.shards.size() > kShardsPerSessionMax) {
    return absl::InvalidArgumentError(absl::StrCat("shards has ", terms.shards.size(),
                                                   " entries; at most ", kShardsPerSessionMax,
                                                   " are allowed"));
  }
  for (size_t i = 0; i < terms.shards.size(); ++i) {
    RETURN_IF_ERROR(CheckShard(i, terms.shards[i]));
  }
  return absl::OkStatus();
}

}  // namespace forestage
