#include "daemon/staging/opening_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/limits.h"

namespace forestage {

OpeningWatch::Entry::~Entry() {
  absl::MutexLock lock(&watch_.mutex_);
  watch_.openings_.erase(place_);
}

std::unique_ptr<OpeningWatch::Entry> OpeningWatch::Begin(std::string path_label, uid_t uid,
                                                         absl::Time now) {
  absl::MutexLock lock(&mutex_);
  openings_.push_back({.path_label = std::move(path_label), .uid = uid, .begun = now});
  return std::unique_ptr<Entry>(new Entry(*this, std::prev(openings_.end())));
}

std::vector<OpeningWatch::Stuck> OpeningWatch::NewlyStuck(absl::Time now) {
  std::vector<Stuck> stuck;
  absl::MutexLock lock(&mutex_);
  for (Opening& opening : openings_) {
    if (opening.told || now - opening.begun < kStuckReadTime) continue;
    opening.told = true;
    const bool others_told =
        std::any_of(openings_.begin(), openings_.end(), [&](const Opening& other) {
          return &other != &opening && other.told && other.uid == opening.uid &&
                 other.path_label == opening.path_label;
        });
    if (others_told) continue;
    stuck.push_back({opening.path_label, opening.uid, now - opening.begun});
  }
  return stuck;
}

}  // namespace forestage
