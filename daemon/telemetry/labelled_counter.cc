#include "daemon/telemetry/labelled_counter.h"

#include <map>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"

#include "common/check.h"

namespace forestage {
namespace {

// Position of the value in its label's list, the last one for a value that is not listed.
size_t PositionOf(const LabelDescription& label, absl::string_view value) {
  const size_t position =
      static_cast<size_t>(absl::c_find(label.values, value) - label.values.begin());
  return position < label.values.size() ? position : label.values.size() - 1;
}

}  // namespace

LabelledCounter::LabelledCounter(prometheus::Registry& registry, Metric metric)
    : description_(DescriptionOf(metric)) {
  CHECK(description_.type == MetricType::kCounter);
  prometheus::Family<prometheus::Counter>& family = prometheus::BuildCounter()
                                                        .Name(std::string(description_.name))
                                                        .Help(std::string(description_.help))
                                                        .Register(registry);
  size_t series_count = 1;
  for (const LabelDescription& label : description_.labels) {
    CHECK(!label.values.empty());
    series_count *= label.values.size();
  }
  for (size_t index = 0; index < series_count; ++index) {
    std::map<std::string, std::string> labels;
    size_t rest = index;
    for (size_t i = description_.labels.size(); i-- > 0;) {
      const LabelDescription& label = description_.labels[i];
      labels[std::string(label.name)] = std::string(label.values[rest % label.values.size()]);
      rest /= label.values.size();
    }
    series_.push_back(&family.Add(labels));
  }
}

void LabelledCounter::Add(std::initializer_list<absl::string_view> values, double amount) {
  CHECK(values.size() == description_.labels.size());
  size_t index = 0;
  const auto* label = description_.labels.begin();
  for (const absl::string_view value : values) {
    index = index * label->values.size() + PositionOf(*label, value);
    ++label;
  }
  series_[index]->Increment(amount);
}

}  // namespace forestage
