// What a rank says when it opens a session, free of gRPC, and whether it is within the limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "daemon/session/session_decision.h"

namespace forestage {

struct ShardTerms {
  std::string name;
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;
};

struct SessionTerms {
  std::string group_name;
  std::string launch_nonce;
  uint32_t local_size = 0;
  uint32_t local_rank = 0;
  SessionPolicy policy = SessionPolicy::kAuto;
  SessionAgreement agreement = SessionAgreement::kEager;
  // Zero: the daemon's setting.
  absl::Duration agreement_timeout;
  // For status and logs.
  std::string client_version;
  std::string client_command;
  std::string device_uuid;
  std::string cpu_list;
  // Where the client found the checkpoint. Beside the group's name and nonce it says which group
  // the rank joins; never opened.
  std::string path;
  std::vector<ShardTerms> shards;
  bool demand_follows = false;
};

// INVALID_ARGUMENT names the field that is wrong and its limit.
absl::Status ValidateSessionTerms(const SessionTerms& terms);

}  // namespace forestage
