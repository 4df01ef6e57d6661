#include "daemon/staging/opening_watch.h"

#include <algorithm>
#include <utility>

#include "daemon/limits.h"

namespace forestage {

OpeningWatch::Entry::Entry(std::shared_ptr<Table> table, Opening opening)
    : table_(std::move(table)) {
  absl::MutexLock lock(&table_->mutex);
  place_ = table_->openings.insert(table_->openings.end(), std::move(opening));
}

OpeningWatch::Entry::~Entry() {
  absl::MutexLock lock(&table_->mutex);
  table_->openings.erase(place_);
}

std::unique_ptr<OpeningWatch::Entry> OpeningWatch::Begin(std::string path_label, uid_t uid,
                                                         absl::Time now) {
  return std::unique_ptr<Entry>(
      new Entry(table_, {.path_label = std::move(path_label), .uid = uid, .begun = now}));
}

std::vector<OpeningWatch::Stuck> OpeningWatch::NewlyStuck(absl::Time now) {
  std::vector<Stuck> stuck;
  absl::MutexLock lock(&table_->mutex);
  for (Opening& opening : table_->openings) {
    if (opening.told || now - opening.begun < kStuckReadTime) continue;
    opening.told = true;
    const bool others_told =
        std::any_of(table_->openings.begin(), table_->openings.end(), [&](const Opening& other) {
          return &other != &opening && other.told && other.uid == opening.uid &&
                 other.path_label == opening.path_label;
        });
    if (others_told) continue;
    stuck.push_back({opening.path_label, opening.uid, now - opening.begun});
  }
  return stuck;
}

}  // namespace forestage
