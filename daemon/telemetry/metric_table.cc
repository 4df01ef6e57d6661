#include "daemon/telemetry/metric_table.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/check.h"

namespace forestage {
namespace {

constexpr absl::string_view kCauses[] = {"stage", "demand"};
constexpr absl::string_view kErrorClasses[] = {"io",      "stale",      "timeout", "changed",
                                               "cut_off", "permission", "other"};
constexpr absl::string_view kOutcomes[] = {"closed",   "process_exit", "replaced",
                                           "draining", "error",        "other"};
constexpr absl::string_view kPolicies[] = {"native", "rank_striped_read_ahead", "other"};
constexpr absl::string_view kReasons[] = {
    "requested",          "chosen_by_daemon", "decided_by_group",  "native_in_group",
    "signature_mismatch", "group_incomplete", "not_enough_memory", "other"};
constexpr absl::string_view kBounds[] = {"node", "cgroup", "setting", "user", "other"};
constexpr absl::string_view kCodes[] = {"INVALID_ARGUMENT",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "DEADLINE_EXCEEDED",
                                        "UNAVAILABLE",
                                        "FAILED_PRECONDITION",
                                        "NOT_FOUND",
                                        "CANCELLED",
                                        "INTERNAL",
                                        "OTHER"};

constexpr LabelDescription kVersionLabels[] = {{"version", {}, "the daemon's version"}};
constexpr LabelDescription kCauseLabels[] = {{"cause", kCauses, ""}};
constexpr LabelDescription kErrorLabels[] = {{"class", kErrorClasses, ""}};
constexpr LabelDescription kCheckpointLabels[] = {
    {"checkpoint", {}, "first 12 hexadecimal digits of the signature, or `other`"}};
constexpr LabelDescription kMountLabels[] = {
    {"mount", {}, "`MAJOR:MINOR` as in `/proc/self/mountinfo`, or `other`"}};
constexpr LabelDescription kOutcomeLabels[] = {{"outcome", kOutcomes, ""}};
constexpr LabelDescription kDecisionLabels[] = {{"effective", kPolicies, ""},
                                                {"reason", kReasons, ""}};
constexpr LabelDescription kBoundLabels[] = {{"bound", kBounds, ""}};
constexpr LabelDescription kCodeLabels[] = {{"code", kCodes, ""}};

constexpr MetricDescription kTable[] = {
    {Metric::kBuildInfo, "forestage_build_info", MetricType::kGauge,
     "Always 1; the version of the running daemon is its label.", kVersionLabels},
    {Metric::kProcessStartTime,
     "forestage_process_start_time_seconds",
     MetricType::kGauge,
     "When the daemon started, in seconds since 1970-01-01 UTC.",
     {}},
    {Metric::kStorageReadBytes, "forestage_storage_read_bytes_total", MetricType::kCounter,
     "Bytes that came from storage, by why they were read: of pages that were not in the page "
     "cache before; of all pages where the daemon may not ask (it does not own the file).",
     kCauseLabels},
    {Metric::kExtentReadSeconds,
     "forestage_extent_read_seconds",
     MetricType::kHistogram,
     "Time from the start of an extent's read until all of it was seen in the page cache.",
     {}},
    {Metric::kReadErrors, "forestage_read_errors_total", MetricType::kCounter,
     "Reads of the daemon that failed, by what went wrong.", kErrorLabels},
    {Metric::kCheckpointsStaged,
     "forestage_checkpoints_staged",
     MetricType::kGauge,
     "Checkpoints that the daemon holds now.",
     {}},
    {Metric::kCheckpointWantedBytes, "forestage_checkpoint_wanted_bytes", MetricType::kGauge,
     "Bytes of all pages that open sessions demand.", kCheckpointLabels},
    {Metric::kCheckpointResidentBytes, "forestage_checkpoint_resident_bytes", MetricType::kGauge,
     "Of the wanted bytes: those seen in the page cache.", kCheckpointLabels},
    {Metric::kCheckpointFailedBytes, "forestage_checkpoint_failed_bytes", MetricType::kGauge,
     "Of the wanted bytes: those the daemon could not read.", kCheckpointLabels},
    {Metric::kStagingBytesPerSecond, "forestage_staging_bytes_per_second", MetricType::kGauge,
     "Bytes made resident a second, over the last 4 seconds.", kCheckpointLabels},
    {Metric::kStagingLeftSeconds, "forestage_staging_left_seconds", MetricType::kGauge,
     "Time until all wanted bytes are resident or failed, at that rate; 0 when they are; no series "
     "when it is unknown: nothing is wanted, or nothing comes.",
     kCheckpointLabels},
    {Metric::kSessionsOpen,
     "forestage_sessions_open",
     MetricType::kGauge,
     "Sessions that are open now.",
     {}},
    {Metric::kGroupsOpen,
     "forestage_groups_open",
     MetricType::kGauge,
     "Groups with at least one open session now.",
     {}},
    {Metric::kSessionsEnded, "forestage_sessions_ended_total", MetricType::kCounter,
     "Sessions that ended, by how they ended.", kOutcomeLabels},
    {Metric::kDecisions, "forestage_decisions_total", MetricType::kCounter,
     "Decisions given to sessions, by effective policy and kind of reason.", kDecisionLabels},
    {Metric::kOpensRefused, "forestage_opens_refused_total", MetricType::kCounter,
     "Opens that ended with an error before they became a session, by status code.", kCodeLabels},
    {Metric::kConsumedBytes,
     "forestage_consumed_bytes_total",
     MetricType::kCounter,
     "Bytes of tensors that ranks have marked consumed.",
     {}},
    {Metric::kClientMajorFaults,
     "forestage_client_major_faults_total",
     MetricType::kCounter,
     "Major page faults that clients reported of their own processes.",
     {}},
    {Metric::kMemoryLeasedBytes,
     "forestage_memory_leased_bytes",
     MetricType::kGauge,
     "Memory that checkpoints were promised and still have a reader for.",
     {}},
    {Metric::kMemoryLargestUserBytes,
     "forestage_memory_largest_user_bytes",
     MetricType::kGauge,
     "The same of the user who has most of it; to be compared with staged-bytes-per-uid-max.",
     {}},
    {Metric::kAdmissionsRefused, "forestage_admissions_refused_total", MetricType::kCounter,
     "Groups whose checkpoint did not fit into memory, or into its user's share, by what bounds "
     "it.",
     kBoundLabels},
    {Metric::kMountInFlightBytes, "forestage_mount_in_flight_bytes", MetricType::kGauge,
     "Bytes being read now from a mount with files of staged checkpoints.", kMountLabels},
    {Metric::kMountInFlightLimitBytes, "forestage_mount_in_flight_limit_bytes", MetricType::kGauge,
     "How many may be read at once from the mount, as found by trying.", kMountLabels},
    {Metric::kMountStuckBytes, "forestage_mount_stuck_bytes", MetricType::kGauge,
     "Of the bytes being read: of reads that have not come back for 10 seconds. Not 0 means that "
     "the storage hangs.",
     kMountLabels},
    {Metric::kMountReadLimitBytesPerSecond, "forestage_mount_read_limit_bytes_per_second",
     MetricType::kGauge,
     "How many bytes a second may be read from the mount, by the setting "
     "read-bytes-per-second-max; no series where there is no limit.",
     kMountLabels},
};
static_assert(std::size(kTable) == kMetricCount);
static_assert(kMetricCount == static_cast<size_t>(Metric::kMountReadLimitBytesPerSecond) + 1);

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kMetricCount; ++i) {
    if (kTable[i].metric != static_cast<Metric>(i)) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

// From an extent on a fast local disk to one behind a file server that is overrun.
constexpr double kExtentReadSecondsBuckets[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                0.25,  0.5,    1,     2.5,  5,     10,   30};

std::string LabelAsMarkdown(const LabelDescription& label) {
  if (label.values.empty()) return absl::StrCat("`", label.name, "`: ", label.free_values);
  return absl::StrCat("`", label.name, "`: `", absl::StrJoin(label.values, "`, `"), "`");
}

}  // namespace

absl::string_view MetricTypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  CHECK(false);
}

absl::Span<const MetricDescription> MetricTable() { return kTable; }

const MetricDescription& DescriptionOf(Metric metric) {
  return kTable[static_cast<size_t>(metric)];
}

absl::Span<const double> ExtentReadSecondsBuckets() { return kExtentReadSecondsBuckets; }

std::string MetricsAsMarkdown() {
  std::string text = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const MetricDescription& row : kTable) {
    const std::string labels =
        absl::StrJoin(row.labels, "; ", [](std::string* out, const LabelDescription& label) {
          absl::StrAppend(out, LabelAsMarkdown(label));
        });
    absl::StrAppend(&text, "| `", row.name, "` | ", MetricTypeName(row.type), " | ",
                    labels.empty() ? "none" : labels, " | ", row.help, " |\n");
  }
  return text;
}

}  // namespace forestage
