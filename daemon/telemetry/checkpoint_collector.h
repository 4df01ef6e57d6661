// The metrics of staged checkpoints, asked for at each scrape.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

#include "daemon/staging/staged_checkpoint.h"

namespace forestage {

// Thread-safe. Scrapes run on the exporter's threads.
class CheckpointCollector : public prometheus::Collectable {
 public:
  // Asks this store from now on, or none (nullptr). Waits for a scrape that asks the store before.
  void SetStore(const CheckpointStore* store) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<prometheus::MetricFamily> Collect() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  mutable absl::Mutex mutex_;
  const CheckpointStore* store_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace forestage
