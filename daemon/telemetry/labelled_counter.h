// A counter of the metric table with all its time series.
#pragma once

#include <initializer_list>
#include <vector>

#include "absl/strings/string_view.h"
#include "prometheus/counter.h"
#include "prometheus/registry.h"

#include "daemon/telemetry/metric_table.h"

namespace forestage {

// Makes one time series for each combination of the label values that the table lists, at once: a
// rate over a series that appears with its first event would miss this event. Thread-safe.
class LabelledCounter {
 public:
  // `registry` owns the series and outlives this object.
  // Requires: `metric` is a counter whose labels all have listed values.
  LabelledCounter(prometheus::Registry& registry, Metric metric);

  // Adds to the series of these label values, given in the table's order. A value that the table
  // does not list counts as its label's last one.
  // Requires: as many values as the metric has labels.
  void Add(std::initializer_list<absl::string_view> values, double amount);

 private:
  // Constant after construction. The last label's value varies fastest.
  const MetricDescription& description_;
  std::vector<prometheus::Counter*> series_;
};

}  // namespace forestage
