// Every metric of the daemon, from one table (metric_table.h), and the Prometheus endpoint.
// docs/metrics.md is the page; a test compares the two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Thread-safe; no call but SetStore blocks. Outlives all that reports to it.
class Telemetry : public StagingObserver {
 public:
  struct Options {
    // host:port (port 0: a free one), or "none".
    std::string address;
    std::string daemon_version;
  };
  // Begins to serve http://ADDRESS/metrics, on two threads of its own.
  // INVALID_ARGUMENT: not host:port of a loopback address; UNAVAILABLE: the address is in use;
  // else what binding to it gave (PERMISSION_DENIED: a port below 1024).
  static absl::StatusOr<std::unique_ptr<Telemetry>> Create(const Options& options);
  ~Telemetry() override;

  // Where metrics are served, host:port with the real port; empty when off. Constant.
  std::string address() const;

  // Gauges of staged checkpoints are taken from here at each scrape. `store` outlives this object
  // or is taken back with nullptr before it goes; that waits for a scrape that is under way.
  void SetStore(const CheckpointStore* store);

  void OnExtentRead(ReadCause cause, uint64_t storage_bytes, absl::Duration latency) override;
  void OnReadError(const absl::Status& status) override;
  // `open` sessions, or groups with an open session, now.
  void SetSessions(size_t open);
  void SetGroups(size_t open);
  // How a session ended: "closed", "process_exit", "replaced", "draining", "error". Here and
  // below, a word that metric_table.cc does not list counts as "other".
  void OnSessionEnded(absl::string_view outcome);
  // One a session: effective policy's name and the kind of reason: "requested",
  // "chosen_by_daemon", "decided_by_group", "native_in_group", "signature_mismatch",
  // "group_incomplete", "not_enough_memory".
  void OnDecision(absl::string_view effective, absl::string_view reason_class);
  // A stream that ended with an error before it was a session, by status code.
  void OnOpenRefused(const absl::Status& status);
  // `bytes` more were consumed.
  void OnConsumed(uint64_t bytes);
  // A client's process had `count` more major faults than at its last report.
  void OnMajorFaults(uint64_t count);
  // A group's checkpoint did not fit: "node", "cgroup", "setting", "user".
  void OnAdmissionRefused(absl::string_view bound);
  void SetLeasedBytes(uint64_t bytes);
  // Of the user for whom most is staged.
  void SetLargestUserBytes(uint64_t bytes);

 private:
  class Implementation;
  explicit Telemetry(std::unique_ptr<Implementation> implementation);
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace forestage
