// The table of all metrics. telemetry.cc makes the metrics from it, docs/metrics.md lists them, and
// tests compare both with it. To add a metric: an enumerator, a row, a line that counts, the page.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace forestage {

// In the order of the table.
enum class Metric : size_t {
  kBuildInfo,
  kProcessStartTime,
  kStorageReadBytes,
  kExtentReadSeconds,
  kReadErrors,
  kCheckpointsStaged,
  kCheckpointWantedBytes,
  kCheckpointResidentBytes,
  kCheckpointFailedBytes,
  kStagingBytesPerSecond,
  kStagingLeftSeconds,
  kSessionsOpen,
  kGroupsOpen,
  kSessionsEnded,
  kDecisions,
  kOpensRefused,
  kConsumedBytes,
  kClientMajorFaults,
  kMemoryLeasedBytes,
  kMemoryLargestUserBytes,
  kAdmissionsRefused,
  kMountInFlightBytes,
  kMountInFlightLimitBytes,
  kMountStuckBytes,
  kMountReadLimitBytesPerSecond,
};
inline constexpr size_t kMetricCount = 25;

enum class MetricType { kCounter, kGauge, kHistogram };
// "counter", "gauge", "histogram": as in a # TYPE line.
absl::string_view MetricTypeName(MetricType type);

struct LabelDescription {
  absl::string_view name;
  // Every value the label may have. The last one takes whatever is not listed, so that nothing a
  // client says can make a new time series. Empty: `free_values` says what stands there.
  absl::Span<const absl::string_view> values;
  absl::string_view free_values;
};

struct MetricDescription {
  Metric metric;
  absl::string_view name;
  MetricType type;
  absl::string_view help;
  absl::Span<const LabelDescription> labels;
};

// One row a metric; row i describes static_cast<Metric>(i).
absl::Span<const MetricDescription> MetricTable();
const MetricDescription& DescriptionOf(Metric metric);

// Upper bounds of the buckets of Metric::kExtentReadSeconds, in seconds, rising.
absl::Span<const double> ExtentReadSecondsBuckets();

// Checkpoints with a time series of their own; further ones are added up under "other".
inline constexpr size_t kCheckpointLabelsMax = 64;
// Likewise mounts.
inline constexpr size_t kMountLabelsMax = 32;
// Hexadecimal digits of the signature that the label `checkpoint` shows.
inline constexpr size_t kCheckpointLabelDigits = 12;

// The table as docs/metrics.md has it.
std::string MetricsAsMarkdown();

}  // namespace forestage
