#include "daemon/storage/read_faults.h"

#include <algorithm>
#include <utility>

namespace forestage {

void ReadFaults::Add(ReadFault fault) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back(std::move(fault));
}

void ReadFaults::Release() {
  absl::MutexLock lock(&mutex_);
  faults_.clear();
  ++releases_;
  // Under the lock, so that no reader goes away before it was woken.
  for (StorageReader* reader : readers_) reader->Wake();
}

uint64_t ReadFaults::requests_begun() const {
  absl::MutexLock lock(&mutex_);
  return begun_;
}

uint64_t ReadFaults::requests_held() const {
  absl::MutexLock lock(&mutex_);
  return held_;
}

uint64_t ReadFaults::release_count() const {
  absl::MutexLock lock(&mutex_);
  return releases_;
}

void ReadFaults::WaitUntilBegun(uint64_t count) {
  absl::MutexLock lock(&mutex_);
  const auto reached = [this, count]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return begun_ >= count; };
  mutex_.Await(absl::Condition(&reached));
}

void ReadFaults::WaitUntilHeld(uint64_t count) {
  absl::MutexLock lock(&mutex_);
  const auto reached = [this, count]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_ >= count; };
  mutex_.Await(absl::Condition(&reached));
}

void ReadFaults::WaitUntilUnused() {
  absl::MutexLock lock(&mutex_);
  const auto unused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return readers_.empty(); };
  mutex_.Await(absl::Condition(&unused));
}

void ReadFaults::Attach(StorageReader* reader) {
  absl::MutexLock lock(&mutex_);
  readers_.push_back(reader);
}

void ReadFaults::Detach(StorageReader* reader) {
  absl::MutexLock lock(&mutex_);
  readers_.erase(std::find(readers_.begin(), readers_.end(), reader));
}

bool ReadFaults::OnRequest(const ReadRequest& request, ReadFault* fault) {
  absl::MutexLock lock(&mutex_);
  ++begun_;
  for (ReadFault& candidate : faults_) {
    if (candidate.times == 0 || candidate.file_name != request.file->name() ||
        candidate.end <= request.offset || candidate.begin >= request.offset + request.bytes) {
      continue;
    }
    if (candidate.times != UINT64_MAX) --candidate.times;
    *fault = candidate;
    if (candidate.kind == ReadFault::Kind::kHold || candidate.kind == ReadFault::Kind::kDeaf) {
      ++held_;
    }
    return true;
  }
  return false;
}

void ReadFaults::OnHoldEnded(uint64_t count) {
  absl::MutexLock lock(&mutex_);
  held_ -= count;
}

}  // namespace forestage
