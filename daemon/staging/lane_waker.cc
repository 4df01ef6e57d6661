#include "daemon/staging/lane_waker.h"

namespace forestage {

void LaneWaker::Attach(StorageReader* reader) {
  absl::MutexLock lock(&mutex_);
  readers_.push_back(reader);
}

void LaneWaker::Detach(StorageReader* reader) {
  absl::MutexLock lock(&mutex_);
  std::erase(readers_, reader);
}

void LaneWaker::WakeAll() {
  absl::MutexLock lock(&mutex_);
  for (StorageReader* reader : readers_) reader->Wake();
}

}  // namespace forestage
