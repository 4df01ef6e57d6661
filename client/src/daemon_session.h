// One session with the daemon, as the rest of the client sees it: without gRPC, so that all else is
// tested without it. daemon_connection.h implements it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/src/daemon_loss.h"

#include "common/unique_fd.h"
#include "forestage/decision.h"
#include "forestage/session.h"

namespace forestage {

struct DemandedBytes {
  uint32_t tensor_index = 0;
  // Inside the tensor; both 0: the whole tensor.
  uint64_t begin = 0;
  uint64_t end = 0;
};

// No call blocks unless it says so. Thread-safe.
class DaemonSession {
 public:
  // Closes.
  virtual ~DaemonSession() = default;

  virtual void SendDemand(absl::Span<const DemandedBytes> items) = 0;
  virtual void SendUrgent(absl::Span<const uint64_t> extent_indexes) = 0;
  virtual void SendConsumed(uint32_t tensor_index) = 0;
  // Asks and waits for the answer. DEADLINE_EXCEEDED; UNAVAILABLE when the daemon is lost or the
  // session is closed meanwhile.
  virtual absl::StatusOr<StagingStatus> GetProgress(absl::Time deadline) = 0;
  // Ends the session. Blocks a bounded, short time, so that what was sent before arrives.
  virtual void Close() = 0;
};

// One shard of this rank; the connection duplicates `fd` into the daemon.
struct OfferedShard {
  std::string name = {};
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int fd = -1;
};

struct DaemonOpenRequest {
  std::string socket_path = {};
  // As in DaemonSocket.
  std::string daemon_user = {};
  absl::Duration daemon_wait = {};
  absl::Duration open_timeout = {};
  absl::Duration agreement_timeout = {};
  std::string group_name = {};
  std::string launch_nonce = {};
  uint32_t local_rank = 0;
  uint32_t local_size = 1;
  Policy policy = Policy::kAuto;
  Agreement agreement = Agreement::kEager;
  std::string device_uuid = {};
  // A label; absolute.
  std::string path = {};
  std::vector<OfferedShard> shards = {};
  // Set when the shards' descriptors only name them (O_PATH): opens the files, using what the
  // daemon lends of them where it does (empty, or one entry a shard), and returns the descriptors
  // to offer, in order. To be called before they are sent.
  std::function<absl::StatusOr<std::vector<int>>(std::vector<UniqueFd> lent)> open_shards = nullptr;
  // SendDemand follows; otherwise everything is demanded.
  bool demand_follows = false;
};

// What an open gave.
struct DaemonWelcome {
  std::unique_ptr<DaemonSession> session = nullptr;
  Decision decision;
  UniqueFd catalog_fd = {};
  UniqueFd board_fd = {};
  uint64_t generation = 0;
};

// Opens a session. Blocks, at most daemon_wait + open_timeout, and with strict agreement at most
// agreement_timeout more. Any error means: go native; its message is the reason, in one line, and
// says what to do. Tells `loss` when the session is lost afterwards.
using DaemonConnector = std::function<absl::StatusOr<DaemonWelcome>(
    const DaemonOpenRequest& request, std::shared_ptr<DaemonLoss> loss)>;

}  // namespace forestage
