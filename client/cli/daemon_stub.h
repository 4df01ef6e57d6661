// The calls of the status and health services, over the daemon's sockets. The only file of the
// command line tool that knows gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/global_options.h"

#include "forestage/session.h"

namespace forestage {

// What people see of GetStatusResponse. The JSON has everything.
struct DaemonSessionRow {
  std::string group;
  uint32_t local_rank = 0;
  uint32_t local_size = 0;
  uint32_t pid = 0;
  // Empty until the decision is given out.
  std::string policy;
  std::string reason;
  double age_seconds = 0;
  uint64_t consumed_bytes = 0;
  uint64_t major_faults = 0;
};
struct DaemonCheckpointRow {
  std::string path;
  uint32_t shard_count = 0;
  uint64_t tensor_count = 0;
  uint64_t total_bytes = 0;
  uint64_t wanted_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t failed_bytes = 0;
  uint64_t read_bytes = 0;
  double staging_seconds = 0;
  bool complete = false;
  double bytes_per_second = 0;
  // nullopt: unknown.
  std::optional<double> seconds_left = std::nullopt;
  std::vector<StuckRead> stuck_reads;
  std::vector<std::string> read_errors;
  std::vector<DaemonSessionRow> sessions;
};
struct DaemonMountRow {
  // "8:1".
  std::string device;
  std::string type;
  // Empty where the daemon does not see the mount.
  std::string mount_point;
  std::string way;
  uint64_t advice_bytes = 0;
  uint64_t files_opened = 0;
  uint64_t files_residency_unknown = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t in_flight_limit_bytes = 0;
  uint64_t stuck_bytes = 0;
  // 0: no limit.
  uint64_t read_bytes_per_second_max = 0;
  bool held_back = false;
  std::vector<std::string> weaknesses;
};
struct DaemonUserRow {
  uint32_t uid = 0;
  uint64_t staged_bytes = 0;
};
struct DaemonStatus {
  std::string version;
  uint32_t pid = 0;
  double uptime_seconds = 0;
  bool draining = false;
  std::string reader;
  std::string reader_reason;
  std::string metrics_address;
  uint64_t memory_leased_bytes = 0;
  // Absent when nothing bounds it, and from a daemon that does not say.
  std::optional<uint64_t> memory_available_bytes;
  std::string memory_bound;
  std::vector<std::string> memory_unknown;
  std::vector<DaemonUserRow> users;
  // What each user may have staged; absent when nothing bounds it.
  std::optional<uint64_t> user_bytes_max;
  std::vector<DaemonCheckpointRow> checkpoints;
  std::vector<DaemonMountRow> mounts;
  // The response by protobuf's JSON mapping, with the field names of the .proto file.
  std::string json;
};

// Connected when it is made, for its whole life. Thread-safe. Every call blocks until the daemon
// answers or `deadline`. Errors, all of which name the socket and say what to do:
//   UNAVAILABLE         there is no daemon; IsNoDaemon is true for exactly this
//   PERMISSION_DENIED   there is one, and this user may not use it
//   UNAUTHENTICATED     somebody listens who is not known to be the daemon; he was not asked
//   ABORTED             it closed the connection without an answer
//   INVALID_ARGUMENT    no socket can have this path
//   DEADLINE_EXCEEDED   there is one, and it does not answer
//   others              as the daemon says
class DaemonStub {
 public:
  // The socket for ranks: health only.
  static DaemonStub ForRanks(const GlobalOptions& global);
  // The socket for root and the daemon's own user: everything.
  static DaemonStub ForAdministrators(const GlobalOptions& global);
  ~DaemonStub();
  DaemonStub(const DaemonStub&) = delete;
  DaemonStub& operator=(const DaemonStub&) = delete;

  absl::StatusOr<DaemonStatus> GetStatus(absl::Time deadline) const;

  // grpc.health.v1's word for the whole server: "SERVING", "NOT_SERVING", "UNKNOWN".
  absl::StatusOr<std::string> CheckHealth(absl::Time deadline) const;

 private:
  class Channel;
  explicit DaemonStub(absl::StatusOr<std::unique_ptr<Channel>> channel);
  const absl::StatusOr<std::unique_ptr<Channel>> channel_;
};

bool IsNoDaemon(const absl::Status& status);

}  // namespace forestage
