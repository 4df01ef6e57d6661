#include "daemon/telemetry/checkpoint_collector.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

#include "common/mount_probe.h"
#include "daemon/telemetry/metric_table.h"

namespace forestage {
namespace {

// Of one label's checkpoints together.
struct CheckpointFigures {
  double wanted_bytes = 0;
  double resident_bytes = 0;
  double failed_bytes = 0;
  double bytes_per_second = 0;
  // The longest; nullopt when unknown of any.
  std::optional<double> left_seconds = 0;

  void Add(const StagingProgress& progress) {
    wanted_bytes += static_cast<double>(progress.wanted_bytes);
    resident_bytes += static_cast<double>(progress.resident_bytes);
    failed_bytes += static_cast<double>(progress.failed_bytes);
    bytes_per_second += progress.bytes_per_second;
    if (!progress.time_left.has_value() || !left_seconds.has_value()) {
      left_seconds = std::nullopt;
    } else {
      left_seconds = std::max(*left_seconds, absl::ToDoubleSeconds(*progress.time_left));
    }
  }
};
using FiguresByLabel = std::map<std::string, CheckpointFigures>;
using FlightsByLabel = std::map<std::string, MountFlight>;

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

// One series a label, without those that have no value.
template <typename Figures>
prometheus::MetricFamily LabelledGauge(Metric metric,
                                       const std::map<std::string, Figures>& by_label,
                                       std::optional<double> (*value)(const Figures&)) {
  prometheus::MetricFamily family = EmptyGauge(metric);
  const std::string label(DescriptionOf(metric).labels[0].name);
  for (const auto& [name, figures] : by_label) {
    const std::optional<double> known = value(figures);
    if (!known.has_value()) continue;
    prometheus::ClientMetric& series = family.metric.emplace_back();
    series.label.push_back({label, name});
    series.gauge.value = *known;
  }
  return family;
}

FlightsByLabel ByLabel(const std::vector<MountFlight>& flights) {
  FlightsByLabel by_label;
  for (const MountFlight& flight : flights) {
    std::string label = DeviceText(flight.device);
    if (!by_label.contains(label) && by_label.size() >= kMountLabelsMax) label = "other";
    MountFlight& sum = by_label[std::move(label)];
    sum.in_flight_bytes += flight.in_flight_bytes;
    sum.limit_bytes += flight.limit_bytes;
    sum.stuck_bytes += flight.stuck_bytes;
    sum.bytes_per_second_max += flight.bytes_per_second_max;
  }
  return by_label;
}

}  // namespace

void CheckpointCollector::SetStore(const CheckpointStore* store) {
  absl::MutexLock lock(&mutex_);
  store_ = store;
}

std::vector<prometheus::MetricFamily> CheckpointCollector::Collect() const {
  size_t staged = 0;
  FiguresByLabel checkpoints;
  FlightsByLabel flights;
  {
    absl::MutexLock lock(&mutex_);
    if (store_ != nullptr) {
      flights = ByLabel(store_->Flights());
      for (const std::shared_ptr<StagedCheckpoint>& checkpoint : store_->List()) {
        ++staged;
        std::string label = LabelOf(*checkpoint);
        if (!checkpoints.contains(label) && checkpoints.size() >= kCheckpointLabelsMax) {
          label = "other";
        }
        checkpoints[std::move(label)].Add(checkpoint->progress());
      }
    }
  }
  std::vector<prometheus::MetricFamily> families;
  families.push_back(PlainGauge(Metric::kCheckpointsStaged, static_cast<double>(staged)));
  using Figures = CheckpointFigures;
  const auto add = [&](Metric metric, std::optional<double> (*value)(const Figures&)) {
    families.push_back(LabelledGauge(metric, checkpoints, value));
  };
  add(Metric::kCheckpointWantedBytes,
      [](const Figures& of) { return std::optional(of.wanted_bytes); });
  add(Metric::kCheckpointResidentBytes,
      [](const Figures& of) { return std::optional(of.resident_bytes); });
  add(Metric::kCheckpointFailedBytes,
      [](const Figures& of) { return std::optional(of.failed_bytes); });
  add(Metric::kStagingBytesPerSecond,
      [](const Figures& of) { return std::optional(of.bytes_per_second); });
  add(Metric::kStagingLeftSeconds, [](const Figures& of) { return of.left_seconds; });
  const auto add_flight = [&](Metric metric, std::optional<double> (*value)(const MountFlight&)) {
    families.push_back(LabelledGauge(metric, flights, value));
  };
  add_flight(Metric::kMountInFlightBytes,
             [](const MountFlight& of) { return std::optional<double>(of.in_flight_bytes); });
  add_flight(Metric::kMountInFlightLimitBytes,
             [](const MountFlight& of) { return std::optional<double>(of.limit_bytes); });
  add_flight(Metric::kMountStuckBytes,
             [](const MountFlight& of) { return std::optional<double>(of.stuck_bytes); });
  add_flight(Metric::kMountReadLimitBytesPerSecond, [](const MountFlight& of) {
    return of.bytes_per_second_max > 0 ? std::optional<double>(of.bytes_per_second_max)
                                       : std::nullopt;
  });
  return families;
}

}  // namespace forestage
