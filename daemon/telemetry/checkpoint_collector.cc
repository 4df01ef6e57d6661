#include "daemon/telemetry/checkpoint_collector.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

#include "daemon/telemetry/metric_table.h"

namespace forestage {
namespace {

struct CheckpointBytes {
  double wanted = 0;
  double resident = 0;
  double failed = 0;
};

std::string LabelOf(const StagedCheckpoint& checkpoint) {
  const CheckpointSignature signature = checkpoint.catalog().signature();
  return absl::BytesToHexString(
             absl::string_view(reinterpret_cast<const char*>(signature.data()), signature.size()))
      .substr(0, kCheckpointLabelDigits);
}

prometheus::MetricFamily EmptyGauge(Metric metric) {
  const MetricDescription& description = DescriptionOf(metric);
  return {.name = std::string(description.name),
          .help = std::string(description.help),
          .type = prometheus::MetricType::Gauge,
          .metric = {}};
}

prometheus::MetricFamily PlainGauge(Metric metric, double value) {
  prometheus::MetricFamily family = EmptyGauge(metric);
  family.metric.emplace_back().gauge.value = value;
  return family;
}

prometheus::MetricFamily CheckpointGauge(Metric metric,
                                         const std::map<std::string, CheckpointBytes>& checkpoints,
                                         double CheckpointBytes::*field) {
  prometheus::MetricFamily family = EmptyGauge(metric);
  const std::string label(DescriptionOf(metric).labels[0].name);
  for (const auto& [name, bytes] : checkpoints) {
    prometheus::ClientMetric& series = family.metric.emplace_back();
    series.label.push_back({label, name});
    series.gauge.value = bytes.*field;
  }
  return family;
}

}  // namespace

void CheckpointCollector::SetStore(const CheckpointStore* store) {
  absl::MutexLock lock(&mutex_);
  store_ = store;
}

std::vector<prometheus::MetricFamily> CheckpointCollector::Collect() const {
  size_t staged = 0;
  std::map<std::string, CheckpointBytes> checkpoints;
  {
    absl::MutexLock lock(&mutex_);
    if (store_ != nullptr) {
      for (const std::shared_ptr<StagedCheckpoint>& checkpoint : store_->List()) {
        ++staged;
        std::string label = LabelOf(*checkpoint);
        if (!checkpoints.contains(label) && checkpoints.size() >= kCheckpointLabelsMax) {
          label = "other";
        }
        const StagingProgress progress = checkpoint->progress();
        CheckpointBytes& bytes = checkpoints[std::move(label)];
        bytes.wanted += static_cast<double>(progress.wanted_bytes);
        bytes.resident += static_cast<double>(progress.resident_bytes);
        bytes.failed += static_cast<double>(progress.failed_bytes);
      }
    }
  }
  std::vector<prometheus::MetricFamily> families;
  families.push_back(PlainGauge(Metric::kCheckpointsStaged, static_cast<double>(staged)));
  families.push_back(
      CheckpointGauge(Metric::kCheckpointWantedBytes, checkpoints, &CheckpointBytes::wanted));
  families.push_back(
      CheckpointGauge(Metric::kCheckpointResidentBytes, checkpoints, &CheckpointBytes::resident));
  families.push_back(
      CheckpointGauge(Metric::kCheckpointFailedBytes, checkpoints, &CheckpointBytes::failed));
  return families;
}

}  // namespace forestage
