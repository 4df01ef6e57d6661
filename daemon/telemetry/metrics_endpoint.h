// The HTTP endpoint that Prometheus scrapes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

#include "common/loopback_address.h"

namespace forestage {

// Serves http://ADDRESS/metrics on threads of its own. Thread-safe.
class MetricsEndpoint {
 public:
  // UNAVAILABLE: the address is in use; else what binding to it gave. Port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Create(const LoopbackAddress& address);
  // Waits for scrapes that are under way.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // With the real port.
  const LoopbackAddress& address() const { return address_; }

  // Serves these metrics too, as long as they live.
  void Add(const std::shared_ptr<prometheus::Collectable>& metrics);

 private:
  MetricsEndpoint(LoopbackAddress address, std::unique_ptr<prometheus::Exposer> exposer);

  // Constant after construction.
  const LoopbackAddress address_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace forestage
