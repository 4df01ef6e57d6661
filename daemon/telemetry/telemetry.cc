#include "daemon/telemetry/telemetry.h"

#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

#include "common/errno_status.h"
#include "common/loopback_address.h"
#include "common/status_macros.h"
#include "daemon/telemetry/checkpoint_collector.h"
#include "daemon/telemetry/labelled_counter.h"
#include "daemon/telemetry/metric_table.h"
#include "daemon/telemetry/metrics_endpoint.h"

namespace forestage {
namespace {

prometheus::Gauge& AddGauge(prometheus::Registry& registry, Metric metric,
                            const std::map<std::string, std::string>& labels = {}) {
  const MetricDescription& description = DescriptionOf(metric);
  return prometheus::BuildGauge()
      .Name(std::string(description.name))
      .Help(std::string(description.help))
      .Register(registry)
      .Add(labels);
}

prometheus::Histogram& AddExtentReadHistogram(prometheus::Registry& registry) {
  const MetricDescription& description = DescriptionOf(Metric::kExtentReadSeconds);
  const absl::Span<const double> buckets = ExtentReadSecondsBuckets();
  return prometheus::BuildHistogram()
      .Name(std::string(description.name))
      .Help(std::string(description.help))
      .Register(registry)
      .Add({}, prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end()));
}

absl::string_view CauseName(ReadCause cause) {
  return cause == ReadCause::kDemand ? "demand" : "stage";
}

absl::string_view ErrorClass(const absl::Status& status) {
  switch (ErrnoOf(status)) {
    case EIO:
    // Populating a page that cannot be read.
    case EFAULT:
      return "io";
    case ESTALE:
      return "stale";
    case ETIMEDOUT:
      return "timeout";
    default:
      break;
  }
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return "io";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kFailedPrecondition:
      return "changed";
    case absl::StatusCode::kOutOfRange:
      return "cut_off";
    case absl::StatusCode::kPermissionDenied:
      return "permission";
    default:
      return "other";
  }
}

}  // namespace

class Telemetry::Implementation {
 public:
  explicit Implementation(const std::string& daemon_version) {
    AddGauge(*registry_, Metric::kBuildInfo, {{"version", daemon_version}}).Set(1);
    AddGauge(*registry_, Metric::kProcessStartTime)
        .Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }

  absl::Status Serve(const std::string& address_text) {
    const absl::StatusOr<LoopbackAddress> address = ParseLoopbackAddress(address_text);
    if (!address.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("metrics address: ", address.status().message()));
    }
    ASSIGN_OR_RETURN(endpoint_, MetricsEndpoint::Create(*address));
    endpoint_->Add(registry_);
    endpoint_->Add(collector_);
    return absl::OkStatus();
  }

 private:
  friend class Telemetry;

  // Constant after Serve; the metrics are thread-safe by themselves.
  const std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  const std::shared_ptr<CheckpointCollector> collector_ = std::make_shared<CheckpointCollector>();
  LabelledCounter storage_read_bytes_{*registry_, Metric::kStorageReadBytes};
  prometheus::Histogram& extent_read_seconds_ = AddExtentReadHistogram(*registry_);
  LabelledCounter read_errors_{*registry_, Metric::kReadErrors};
  prometheus::Gauge& sessions_open_ = AddGauge(*registry_, Metric::kSessionsOpen);
  prometheus::Gauge& groups_open_ = AddGauge(*registry_, Metric::kGroupsOpen);
  LabelledCounter sessions_ended_{*registry_, Metric::kSessionsEnded};
  LabelledCounter decisions_{*registry_, Metric::kDecisions};
  LabelledCounter opens_refused_{*registry_, Metric::kOpensRefused};
  LabelledCounter consumed_bytes_{*registry_, Metric::kConsumedBytes};
  LabelledCounter client_major_faults_{*registry_, Metric::kClientMajorFaults};
  prometheus::Gauge& memory_leased_bytes_ = AddGauge(*registry_, Metric::kMemoryLeasedBytes);
  prometheus::Gauge& memory_largest_user_bytes_ =
      AddGauge(*registry_, Metric::kMemoryLargestUserBytes);
  LabelledCounter admissions_refused_{*registry_, Metric::kAdmissionsRefused};
  // Null when off. Last, so that no scrape runs while the rest goes.
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

absl::StatusOr<std::unique_ptr<Telemetry>> Telemetry::Create(const Options& options) {
  auto implementation = std::make_unique<Implementation>(options.daemon_version);
  if (options.address != "none") RETURN_IF_ERROR(implementation->Serve(options.address));
  return std::unique_ptr<Telemetry>(new Telemetry(std::move(implementation)));
}

Telemetry::Telemetry(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}

Telemetry::~Telemetry() = default;

std::string Telemetry::address() const {
  const MetricsEndpoint* endpoint = implementation_->endpoint_.get();
  return endpoint == nullptr ? "" : endpoint->address().ToString();
}

void Telemetry::SetStore(const CheckpointStore* store) {
  implementation_->collector_->SetStore(store);
}

void Telemetry::OnExtentRead(ReadCause cause, uint64_t storage_bytes, absl::Duration latency) {
  implementation_->storage_read_bytes_.Add({CauseName(cause)}, static_cast<double>(storage_bytes));
  implementation_->extent_read_seconds_.Observe(absl::ToDoubleSeconds(latency));
}

void Telemetry::OnReadError(const absl::Status& status) {
  implementation_->read_errors_.Add({ErrorClass(status)}, 1);
}

void Telemetry::SetSessions(size_t open) {
  implementation_->sessions_open_.Set(static_cast<double>(open));
}

void Telemetry::SetGroups(size_t open) {
  implementation_->groups_open_.Set(static_cast<double>(open));
}

void Telemetry::OnSessionEnded(absl::string_view outcome) {
  implementation_->sessions_ended_.Add({outcome}, 1);
}

void Telemetry::OnDecision(absl::string_view effective, absl::string_view reason_class) {
  implementation_->decisions_.Add({effective, reason_class}, 1);
}

void Telemetry::OnOpenRefused(const absl::Status& status) {
  implementation_->opens_refused_.Add({absl::StatusCodeToString(status.code())}, 1);
}

void Telemetry::OnConsumed(uint64_t bytes) {
  implementation_->consumed_bytes_.Add({}, static_cast<double>(bytes));
}

void Telemetry::OnMajorFaults(uint64_t count) {
  implementation_->client_major_faults_.Add({}, static_cast<double>(count));
}

void Telemetry::OnAdmissionRefused(absl::string_view bound) {
  implementation_->admissions_refused_.Add({bound}, 1);
}

void Telemetry::SetLeasedBytes(uint64_t bytes) {
  implementation_->memory_leased_bytes_.Set(static_cast<double>(bytes));
}

void Telemetry::SetLargestUserBytes(uint64_t bytes) {
  implementation_->memory_largest_user_bytes_.Set(static_cast<double>(bytes));
}

}  // namespace forestage
